"""The dev server answers as ZooKeeper does: frames that are none, and four-letter words."""

from __future__ import annotations

import re
import struct
import time

import pytest
from support.ensemble import four_letter
from support.jute import EPHEMERAL, acl, auth, boolean, buffer, create, exists, integer, long, part, vector
from support.transcripts import STILL, UNIMPLEMENTED, Pair, changed_in_3_9, compare
from support.wire import Talk

pytestmark = pytest.mark.zookeeper


def greeting(*, password: bytes = b"\0" * 16, tail: bytes = b"\0") -> bytes:
    return integer(0) + long(0) + integer(10_000) + long(0) + buffer(password) + tail


GREETINGS = {
    "as 3.4 has it": greeting(tail=b""),
    "read-only": greeting(tail=b"\1"),
    "too long": greeting(tail=b"\0more"),
    "no password": greeting(password=b""),
    "long password": greeting(password=b"x" * 40),
    "another version": integer(7) + greeting()[4:],
    "short": greeting()[:20],
    "nothing": b"",
    "garbage": b"\xff" * 45,
    "HTTP": b"GET / HTTP/1.1\r\n\r\n",
}


@pytest.mark.parametrize("frame", GREETINGS.values(), ids=GREETINGS.keys())
def test_greetings(pair: Pair, frame: bytes) -> None:
    """The first frame may be that of an old client; what is none ends the connection."""

    def ask(talk: Talk) -> None:
        wire = talk.wire("a")
        wire.write(frame)
        answer = wire.read()
        # Whatever the session and its password are.
        talk.say("closed" if answer is None else f"{answer[:8]!r} {len(answer)} {answer[36:]!r}")
        if answer is not None:
            wire.session, wire.password = struct.unpack(">q", answer[8:16])[0], answer[20:36]
            talk.sessions[wire.session] = wire.password
            wire.do(exists(STILL))

    compare(pair, ask)


REQUESTS: dict[str, bytes] = {
    "nothing": b"",
    "no opcode": integer(1),
    "half an opcode": integer(1) + b"\0\0",
    "an operation that is not there": integer(1) + integer(999),
    "an operation below zero": integer(1) + integer(-5),
    "error": integer(1) + integer(-1),
    "notification": integer(1) + integer(0),
    "sasl": integer(1) + integer(102) + buffer(b"token"),
    "reconfig": integer(1) + integer(16) + buffer(None) * 3 + long(-1),
    "no path": integer(1) + integer(4),
    "half a path": integer(1) + integer(4) + integer(10) + b"/a",
    "a path of -2 bytes": integer(1) + integer(4) + integer(-2) + b"\0",
    "a huge path": integer(1) + integer(4) + integer(2**31 - 1) + b"\0",
    "no watch": integer(1) + integer(4) + buffer("/"),
    "more than all": integer(1) + integer(4) + buffer("/zookeeper/quota") + b"\0more",
    "no text": integer(1) + integer(4) + buffer(b"/\xff\xfe") + b"\0",
    "create without ACL": integer(1) + integer(1) + buffer("/a") + buffer(b""),
    "create with too many ACLs": integer(1) + integer(1) + buffer("/a") + buffer(b"") + integer(2**31 - 1),
    "half a check outside a multi": integer(1) + integer(13),
    "multi without end": integer(1) + integer(14) + part(1) + create("/a")[1],
    "multi of nothing": integer(1) + integer(14),
    "multi of something else": integer(1) + integer(14) + part(999) + part(-1, done=True),
    "ping with a body": integer(-2) + integer(11) + b"x" * 100,
    "ping with another number": integer(7) + integer(11),
    "auth with another number": integer(7) + integer(100) + auth("a:b")[1],
    "half an auth": integer(-4) + integer(100) + integer(0) + buffer("digest"),
    "setWatches without paths": integer(-8) + integer(101) + long(0),
    "setWatches of null": integer(-8) + integer(101) + long(0) + vector(None) * 3,
    "removeWatches of no kind": integer(1) + integer(18) + buffer("/"),
    "number -1": integer(-1) + integer(3) + buffer(STILL) + boolean(False),
    "create of a null ACL": integer(1) + integer(1) + buffer("/a") + buffer(b"") + acl(None) + integer(0),
}
NO_TRANSACTION = ("create without ACL", "create with too many ACLs", "half a check outside a multi")


@pytest.mark.parametrize("name", REQUESTS)
def test_broken_requests(pair: Pair, name: str) -> None:
    """A request that cannot be understood gets the same error, or the same end, and costs nobody else anything."""

    def ask(talk: Talk) -> None:
        a, b = talk.a, talk.b
        a.do(create("/e", b"", EPHEMERAL))
        a.write(REQUESTS[name])
        a.write(integer(77) + integer(3) + buffer(STILL) + boolean(False))  # is it still served?
        while (answer := a.read()) is not None:
            reply = struct.unpack(">iqi", answer[:16])
            talk.say(f"{reply[0]} {talk.names.zxid(reply[1])} {reply[2]}")
            if reply[0] == 77 or reply[2] == UNIMPLEMENTED:  # after which the connection ends, sooner or later
                break
        talk.say("closed" if answer is None else "open")
        b.do(exists("/e"), create("/still/there"))

    compare(pair, changed_in_3_9(ask) if name in NO_TRANSACTION else ask)


LENGTHS = {"negative": -1, "smallest": -(2**31), "largest": 2**31 - 1, "limit": 0xFFFFF + 1, "above it": 0xFFFFF + 2}


@pytest.mark.parametrize("length", LENGTHS.values(), ids=LENGTHS.keys())
@pytest.mark.parametrize("greeted", [False, True], ids=["first", "later"])
def test_broken_lengths(pair: Pair, greeted: bool, length: int) -> None:
    """A frame that is too long, or of less than nothing, ends the connection, not the session."""

    def ask(talk: Talk) -> None:
        wire = talk.a if greeted else talk.wire("a")
        wire.write_raw(integer(length) + b"x" * 100)
        wire.shut()
        answer = wire.read()
        talk.say("closed" if answer is None else repr(answer))
        talk.b.do(exists(STILL))
        if greeted:
            talk.join("a", session=wire.session, password=wire.password)

    compare(pair, ask)


def test_bytes_may_come_one_by_one(pair: Pair) -> None:
    """Frames are put together from however many pieces, and many may come in one."""

    def ask(talk: Talk) -> None:
        a = talk.a
        for byte in integer(4 + 4 + len(buffer(STILL)) + 1) + integer(50) + integer(3) + buffer(STILL) + boolean(False):
            a.write_raw(bytes([byte]))
            time.sleep(0.001)
        a.until(50)
        a.pipeline(*[exists(STILL)] * 200)

    compare(pair, ask)


# And what stands for one: the day, the version. ZooKeeper counts a request as answered at times before it
# counts it as begun, so "Outstanding" may be -1.
NUMBERS = re.compile(r"Zookeeper version: .*|expire at .*|0x[0-9a-f]+|-?[0-9][0-9.]*|(?<=lop=)\w+")


@pytest.mark.parametrize("word", ["ruok", "srvr", "stat", "cons", "dump", "isro", "mntr"])
def test_four_letter_words(pair: Pair, word: str) -> None:
    """The answers have the form of ZooKeeper's: the same words in the same places, other numbers."""
    told = {}
    for name, port in pair.items():
        with Talk(port) as talk:
            talk.a.do(create("/e", b"", EPHEMERAL), exists("/e", True))
            told[name] = four_letter("127.0.0.1", port, word)
    shapes = {name: sorted({re.sub(NUMBERS, "#", line) for line in text.splitlines()}) for name, text in told.items()}
    if word == "mntr":  # many of the real server's are about what a dev server does not have
        wanted = {"zk_version", "zk_server_state", "zk_znode_count", "zk_watch_count", "zk_ephemerals_count"}
        wanted |= {"zk_num_alive_connections", "zk_packets_received", "zk_packets_sent", "zk_outstanding_requests"}
        wanted |= {"zk_avg_latency", "zk_min_latency", "zk_max_latency", "zk_approximate_data_size"}
        names = {name: {line.partition("\t")[0] for line in text.splitlines()} for name, text in told.items()}
        assert wanted <= names["real"]
        assert wanted <= names["dev"]
    else:
        assert shapes["dev"] == shapes["real"], told
