"""One script on two servers, and the difference of what they said: each frame is a line, with counted transactions."""

import difflib
import re
from collections.abc import Callable

import pytest

from support.ensemble import four_letter
from support.jute import JANITOR_ACL
from support.wire import Talk

Script = Callable[[Talk], None]
Pair = dict[str, int]  # ports

STILL = "/zookeeper/quota"  # a node that no script changes, to ask for
UNIMPLEMENTED = -6
TICK = 0.1  # seconds; so a session can be as short as 0.2 s
SHORT = 800  # milliseconds, for sessions that are to expire
REAPED = 0.3  # seconds between two sweeps of containers

ALICE = "digest", "alice:aYXlLOpEooaV1cRAvUL1fp9Qt7E="


def who_may(*permissions):
    return [*permissions, JANITOR_ACL]


def is_3_9(pair):
    """Return whether the real server is ZooKeeper 3.9 or newer. The dev server answers as 3.8 does."""
    version = re.search(r"version: (\d+)\.(\d+)", four_letter("127.0.0.1", pair["real"], "srvr"))
    assert version is not None
    return tuple(map(int, version.groups())) >= (3, 9)


_changed = set()


def changed_in_3_9(script):
    """
    Mark a script that 3.9 answers in another way: `compare` skips it there.

    3.9 asks for a permission to see whether a node exists, and refuses unreadable requests before they are
    transactions. The dev server behaves like 3.8.
    """
    _changed.add(script)
    return script


def _without_changes(line):
    """Leave out what 3.9 has added: the zxid of an event, and the stat of a create in a multi."""
    line = re.sub(r"(EVENT .*) zxid=\S+", r"\1", line)
    return re.sub(r"create2? 0 (path=.*?)( stat=\(.*?\))?(?=['\"])", r"create 0 \1", line)


def compare(pair, script):
    newer = is_3_9(pair)
    if newer and script in _changed:
        pytest.skip("ZooKeeper 3.9 answers in another way than 3.8 and the dev server")
    transcripts = {}
    for name, port in pair.items():
        with Talk(port) as talk:
            script(talk)
        transcripts[name] = [_without_changes(line) for line in talk.lines] if newer else talk.lines
    if transcripts["real"] != transcripts["dev"]:
        lines = difflib.unified_diff(
            transcripts["real"], transcripts["dev"], "ZooKeeper", "dev server", lineterm="", n=4
        )
        pytest.fail("\n".join(lines), pytrace=False)
    assert transcripts["real"], "the script asked nothing"


def sort_events(talk):
    """Put the events last, sorted: those of one session's end come in no order."""
    events = [line for line in talk.lines if "EVENT" in line]
    talk.lines[:] = [line for line in talk.lines if "EVENT" not in line] + sorted(events)
