"""A client of ZooKeeper's wire protocol that hides nothing, and a transcript to compare with that of another server."""

import contextlib
import socket
import struct
import time

from support import jute
from support.jute import Jute, boolean, buffer, integer, long


class Wire:
    """One connection. `note` is given what comes, in its order, as the lines of a transcript."""

    def __init__(self, port, note=lambda line: None, names=None):
        self.session = 0
        self.password = b"\0" * 16
        self.timeout = 0  # milliseconds, as negotiated
        self.last_zxid = 0
        self.events = 0  # how many came
        self.listed = []  # what getChildren answered last
        self._note = note
        self._names = names or Names()
        self._xid = 0
        self._asked = {}  # opcodes of requests without a reply, by xid
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=30)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def connect(
        self,
        timeout=10_000,
        session=0,
        password=b"\0" * 16,
        zxid=0,
        read_only=False,
    ):
        """Send the first frame, and take its answer; False if there was none, or a session of 0."""
        greeting = integer(0) + long(zxid) + integer(timeout) + long(session) + buffer(password) + boolean(read_only)
        self.write(greeting)
        frame = self.read()
        if frame is None:
            self._note("closed")
            return False
        reply = Jute(frame)
        version, self.timeout, self.session = reply.int32(), reply.int32(), reply.int64()
        self.password = reply.buffer() or b""
        said = f"read_only={reply.flag()}" if reply.rest else "-"
        self._note(
            f"connected version={version} timeout={self.timeout} session={self._names.session(self.session)} "
            f"password={'null' if not any(self.password) else 'secret'}[{len(self.password)}] {said} {reply.rest!r}"
        )
        return self.session != 0

    def write(self, frame):
        self.write_raw(integer(len(frame)) + frame)

    def write_raw(self, data):
        with contextlib.suppress(OSError):  # the server may have closed it; reading tells
            self._socket.sendall(data)

    def read(self):
        try:
            length = self._read(4)
            return None if length is None else self._read(*struct.unpack(">i", length))
        except ConnectionError:
            return None

    def _read(self, count):
        data = b""
        while len(data) < count:
            chunk = self._socket.recv(count - len(data))
            if not chunk:
                return None
            data += chunk
        return data

    def send(self, op, body=b"", xid=None):
        """Send a request without waiting for its reply."""
        if xid is None:
            self._xid += 1
            xid = {"auth": jute.XID_AUTH, "setWatches": jute.XID_SET_WATCHES}.get(str(op), self._xid)
        code = jute.OPS[op] if isinstance(op, str) else op
        self._asked[xid] = code
        self.write(integer(xid) + integer(code) + body)
        return xid

    def ask(self, request):
        return self.until(self.send(*request))

    def do(self, *requests):
        for request in requests:
            self.ask(request)

    def pipeline(self, *requests):
        for xid in [self.send(*request) for request in requests]:
            self.until(xid)

    def until(self, xid):
        while True:
            frame = self.read()
            if frame is None:
                self._note("closed")
                return -1
            got, error = self._receive(Jute(frame))
            if got == xid:
                return error

    def fence(self):
        """Take in the events that were sent before now."""
        self.until(self.send("ping", xid=jute.XID_PING))

    def wait_event(self, timeout=30.0):
        before = self.events
        deadline = time.monotonic() + timeout
        while self.events == before and time.monotonic() < deadline:
            self.fence()
            time.sleep(0.001)

    def _receive(self, frame):
        xid, zxid, error = frame.int32(), frame.int64(), frame.int32()
        self.last_zxid = max(self.last_zxid, zxid)
        if xid == jute.XID_EVENT:
            self.events += 1
            kind, state = frame.int32(), frame.int32()
            zxid_text = self._names.zxid(zxid)
            self._note(f"EVENT type={kind} state={state} path={frame.text()} zxid={zxid_text} err={error}")
            return xid, error
        code = self._asked.pop(xid, None)
        name = jute.NAMES.get(code or 0, str(code))
        if xid == jute.XID_PING and error == 0:
            assert frame.rest == b""
            return xid, error
        header = f"{name} xid={xid} zxid={self._names.zxid(zxid)} err={error}"
        if error == 0:
            if name == "getChildren":
                self.listed = Jute(frame.rest).texts()
            header += self._names.body(name, frame)
        self._note(f"{header} rest={frame.rest!r}" if frame.rest else header)
        return xid, error

    def shut(self):
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def drop(self):
        self._socket.close()

    def end(self):
        self.ask(("closeSession", b""))
        self._note("closed" if self.read() is None else "still open")
        self.drop()


class Names:
    """Names for the sessions and transaction ids of a server, which are the same for each server."""

    def __init__(self):
        self.base = None
        self._sessions = {0: "none"}

    def forget(self):
        self._sessions = {0: "none"}

    def zxid(self, value):
        if value <= 0 or self.base is None:
            return str(value) if value <= 0 else "?"
        return f"z{value - self.base:+}" if value >= self.base else "before"

    def session(self, value):
        return self._sessions.setdefault(value, f"s{len(self._sessions)}")

    def body(self, name, frame):
        if not frame.rest:
            return ""
        return " " + " ".join(f"{key}={value}" for key, value in self._fields(name, frame))

    def _fields(self, name, frame):
        readers = {
            "path": frame.text,
            "data": lambda: _short(frame.buffer()),
            "children": frame.texts,
            "stat": lambda: self.stat(frame),
            "acl": lambda: frame.vector(lambda: (frame.int32(), frame.text(), frame.text())),
            "results": lambda: self.results(frame),
        }
        return [(field, readers[field]()) for field in jute.BODIES.get(name, ())]

    def stat(self, frame):
        czxid, mzxid, ctime, mtime = frame.int64(), frame.int64(), frame.int64(), frame.int64()
        version, cversion, aversion, owner = frame.int32(), frame.int32(), frame.int32(), frame.int64()
        length, count, pzxid = frame.int32(), frame.int32(), frame.int64()
        now = time.time() * 1000
        times = "now" if all(now - 60_000 < moment < now + 1000 for moment in (ctime, mtime)) else f"{ctime},{mtime}"
        return (
            f"(c={self.zxid(czxid)} m={self.zxid(mzxid)} p={self.zxid(pzxid)} versions={version},{cversion},{aversion} "
            f"owner={self.owner(owner)} length={length} children={count} times={times}"
            f"{'' if mtime >= ctime else ' modified before created'})"
        )

    def owner(self, value):
        return self._sessions.get(value, hex(value))

    def results(self, frame):
        texts = []
        while True:
            code, done, error = frame.int32(), frame.flag(), frame.int32()
            if done:
                return [*texts, f"end {code} {error}"]
            name = jute.NAMES.get(code, str(code))
            if code == -1:
                texts.append(f"error {error} {frame.int32()}")
            else:
                fields = self._fields(name, frame) if name != "check" else []
                body = " ".join(f"{key}={value}" for key, value in fields)
                texts.append(f"{name} {error} {body}".rstrip())


def _short(value):
    return repr(value) if value is None or len(value) < 100 else f"{value[:20]!r}...[{len(value)}]"


class Talk:
    """The connections of a script, by name; a new one gets a session. The tree is empty before and after."""

    def __init__(self, port):
        self.port = port
        self.lines = []
        self.names = Names()
        self._wires = {}
        self.sessions = {}

    def wire(self, name):
        if name in self._wires:
            self._wires[name].drop()
        self._wires[name] = Wire(self.port, lambda line: self.lines.append(f"{name}< {line}"), self.names)
        return self._wires[name]

    def join(self, name, **how):
        wire = self.wire(name)
        if wire.connect(**how):
            self.sessions[wire.session] = wire.password
        return wire

    def say(self, what):
        """Put a line into the transcript, so that a difference can be read."""
        self.lines.append(f"--- {what}")

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        return self._wires.get(name) or self.join(name)

    def __enter__(self):
        self._clear()
        self.names.base = self._wires.pop("janitor").last_zxid  # the end of its session is the first that is counted
        self.names.forget()
        self.lines.clear()
        return self

    def __exit__(self, *error):
        for wire in self._wires.values():
            wire.drop()
        lines, self.lines = self.lines, []
        for session, password in self.sessions.copy().items():
            wire = self.wire("last")
            if wire.connect(session=session, password=password):
                wire.end()
        self._clear()
        self.lines = lines

    def _clear(self):
        janitor = self.wire("janitor")
        janitor.connect()
        janitor.ask(jute.auth(jute.JANITOR))
        self._sweep(janitor, "/")
        janitor.end()

    def _sweep(self, janitor, path):
        janitor.ask(jute.set_acl(path, jute.OPEN))
        xid = janitor.send(*jute.children(path))
        janitor.until(xid)
        for name in janitor.listed:
            if name != "zookeeper":
                below = f"{path.rstrip('/')}/{name}"
                self._sweep(janitor, below)
                janitor.ask(jute.delete(below))
