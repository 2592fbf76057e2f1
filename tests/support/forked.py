"""Start Python programs as forks of a process that has made the imports, which take most of the time of a short one."""

import atexit
import ctypes
import gc
import importlib
import inspect
import io
import json
import multiprocessing.process
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
from typing import Any

from support.chaos import namespaces

IMPORTS = (
    "celery.__main__",
    "celery.apps.worker",
    "celery.bin.celery",
    "celery.concurrency.prefork",
    "celery.concurrency.thread",
    "celery.fixups.django",
    "celery.worker.components",
    "celery.worker.consumer",
    "django.contrib.admin",
    "django.core.management.commands.migrate",
    "django.core.management.commands.test",
    "django.db.backends.sqlite3.base",
    "django.test.runner",
    "django.urls",
    "kazoo.client",
    "kombu.transport.filesystem",
    "kombu.transport.memory",
    "pytest",
    "django_zklock.contrib.celery.unique",
    "django_zklock.decorators.locked",
    "django_zklock.locks.lock",
    "django_zklock.middleware",
    "django_zklock.operations.breaks",
    "django_zklock.testing.cases",
    "django_zklock.testing.runner",
    "django_zklock.testing.server",
    "django_zklock.testing.tester",
)
"""Most programs import these. None starts a thread, or reads settings. Pytest rewrites its plugins: none is here."""
FOR_PYTHON = ("PYTHON", "LC_", "LANG", "TZ", "COVERAGE", "REMAP_SIGTERM")
"""How the names of variables begin that the interpreter reads when it starts, or billiard when it is imported."""
PATCHING = ("gevent",)  # libraries that replace parts of others, and so must be imported first
SUBREAPER = 36  # `PR_SET_CHILD_SUBREAPER`: the orphans among its descendants become children of this process
NEW_UTS = 0x04000000  # `CLONE_NEWUTS`: a name of the host of its own


def start(command, *, env, host="", **options):
    """Start Python as `subprocess.Popen` does, which has the other options, with a name of the host that it sees."""
    if _can_fork(command, env) and (not host or os.geteuid() == 0):
        return _Fork([sys.executable, *command], env=env, host=host, **options)
    return start_fresh(command, env=env, host=host, **options)


def start_fresh(command, *, host="", **options):
    on_host = namespaces.on_host(host) if host else ()
    return subprocess.Popen([*on_host, sys.executable, *command], **options)


def run(command, *, timeout, **options):
    with start(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options) as process:
        try:
            printed = process.communicate(timeout=timeout)
        finally:
            process.kill()
    return subprocess.CompletedProcess(process.args, process.returncode, *printed)


def _can_fork(command, env):
    same = all(
        env.get(name) == os.environ.get(name)
        for name in {*env, *os.environ}
        if name.startswith(FOR_PYTHON) and name != "PYTHONPATH"
    )
    kind = command[command[0] == "-u"]
    special = any(name in word for word in command for name in PATCHING)
    return sys.platform == "linux" and same and not special and (kind in ("-c", "-m") or not kind.startswith("-"))


class _Fork(subprocess.Popen[Any]):
    """A process that is started by the stem, and is a child of this one all the same."""

    def __init__(self, command, *, host, **options):
        self._host = host
        super().__init__(command, **options)

    def _execute_child(self, *given):
        """Fork instead of what `Popen` does here, with the ends of pipes that it has made."""
        options = inspect.signature(subprocess.Popen._execute_child).bind(self, *given).arguments
        pipes = [options[name] for name in ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")]
        request = {
            "command": options["args"][1:],
            "cwd": os.fspath(options["cwd"] or os.getcwd()),
            "env": dict(options["env"]),
            "own_session": options["start_new_session"],
            "host": self._host,
        }
        ends = [pipes[0], pipes[3], pipes[5]]
        self.pid = _stem.fork(request, [number if end == -1 else end for number, end in enumerate(ends)])
        self._child_created = True
        self._close_pipe_fds(*pipes)


class _Stem:
    """The process that forks. It ends with this one, when its socket is closed."""

    def __init__(self):
        self._lock = threading.Lock()
        self._socket = None
        self._owner = 0

    def fork(self, request, ends):
        """Start a program with these ends as its standard input, output and error; return its process id."""
        with self._lock:
            if self._socket is None or self._owner != os.getpid():
                self._socket = self._start()
            text = json.dumps(request).encode()
            prctl = ctypes.CDLL(None, use_errno=True).prctl
            prctl(SUBREAPER, 1, 0, 0, 0)
            try:
                socket.send_fds(self._socket, [len(text).to_bytes(4, "big")], ends)
                self._socket.sendall(text)
                answer = self._socket.recv(4, socket.MSG_WAITALL)
                assert self._socket.recv(1), "the stem ended"
            except BaseException:
                self._socket.close()
                self._socket = None  # a new one for the next program
                raise
            finally:
                prctl(SUBREAPER, 0, 0, 0, 0)
            return int.from_bytes(answer, "big")

    def _start(self):
        self._owner = os.getpid()
        ours, theirs = socket.socketpair()
        from support.zoo import PYTHONPATH

        code = f"from support.forked import serve; serve({theirs.fileno()})()"
        env = {**os.environ, "PYTHONPATH": PYTHONPATH}
        with theirs:
            command = [sys.executable, "-c", code]
            process = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()])

        def stop():
            if os.getpid() == self._owner:
                ours.close()
                process.wait()

        atexit.register(stop)
        return ours


_stem = _Stem()


def serve(number):
    """Fork for each request on this socket. Return, in the child, what runs the program; end with the other side."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in IMPORTS:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    with socket.socket(fileno=number) as client:
        while True:
            header, ends, _, _ = socket.recv_fds(client, 4, 3)
            if not header:
                return lambda: None
            request = json.loads(client.recv(int.from_bytes(header, "big"), socket.MSG_WAITALL))
            between = os.fork()
            if not between:
                program = os.fork()
                if program:
                    client.sendall(program.to_bytes(4, "big"))
                    os._exit(0)  # the program is an orphan now, and goes to the process that asked
                break
            os.waitpid(between, 0)
            client.sendall(b".")
            for end in ends:
                os.close(end)
    for standard, end in enumerate(ends):
        os.dup2(end, standard)
        os.close(end)
    return lambda: _run(**request)


def _run(command, cwd, env, own_session, host):
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if own_session:
        os.setsid()
    if host:
        ctypes.CDLL(None).unshare(NEW_UTS)
        socket.sethostname(host)
    os.chdir(cwd)
    # Below it, its children look for the main module.
    multiprocessing.process.ORIGINAL_DIR = os.getcwd()
    before = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ.clear()
    os.environ.update(env)
    unbuffered = command[0] == "-u"
    kind, *arguments = command[unbuffered:]
    what = arguments.pop(0) if kind in ("-c", "-m") else kind
    first = {"-c": "", "-m": cwd}.get(kind, os.path.dirname(what))
    ours = env.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:] = [first, *filter(None, ours), *(folder for folder in sys.path if folder not in ("", *before))]
    importlib.invalidate_caches()
    for number, name in enumerate(("stdout", "stderr"), 1):
        stream = io.FileIO(number, "w", closefd=False)
        buffered = stream if unbuffered else io.BufferedWriter(stream)
        lines = number == 2 or stream.isatty()
        errors = "backslashreplace" if number == 2 else "strict"
        setattr(sys, name, io.TextIOWrapper(buffered, "utf-8", errors, line_buffering=lines, write_through=unbuffered))
        setattr(sys, f"__{name}__", getattr(sys, name))
    sys.argv[:] = ["-c" if kind == "-c" else what, *arguments]
    if kind == "-c":
        main = type(sys)("__main__")
        sys.modules["__main__"] = main
        exec(compile(what, "<string>", "exec"), vars(main))
    elif kind == "-m":
        runpy.run_module(what, run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(what, run_name="__main__")
