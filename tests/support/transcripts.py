"""
One script on two servers, and the difference of what they said.

A transcript is every frame that came, in order, as a line. Transaction ids are counted from the script's beginning, so
a request that takes one on one server alone shows.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable

import pytest

from support.jute import JANITOR_ACL, Acl
from support.wire import Talk

Script = Callable[[Talk], None]
Pair = dict[str, int]  # ports

STILL = "/zookeeper/quota"  # a node that no script changes, to ask for
UNIMPLEMENTED = -6
TICK = 0.1  # seconds; so a session can be as short as 0.2 s
SHORT = 800  # milliseconds, for sessions that are to expire
REAPED = 0.3  # seconds between two sweeps of containers

ALICE = "digest", "alice:aYXlLOpEooaV1cRAvUL1fp9Qt7E="


def who_may(*permissions: Acl) -> list[Acl]:
    return [*permissions, JANITOR_ACL]


def compare(pair: Pair, script: Script) -> None:
    """Run a script on both servers, and fail with the difference of what they said."""
    told = {}
    for name, port in pair.items():
        with Talk(port) as talk:
            script(talk)
        told[name] = talk.lines
    if told["real"] != told["dev"]:
        lines = difflib.unified_diff(told["real"], told["dev"], "ZooKeeper", "dev server", lineterm="", n=4)
        pytest.fail("\n".join(lines), pytrace=False)
    assert told["real"], "the script asked nothing"


def scripts(*functions: Script) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("script", functions, ids=lambda function: function.__name__)


def sort_events(talk: Talk) -> None:
    """Put the events last, sorted: those of one session's end come in no order."""
    events = [line for line in talk.lines if "EVENT" in line]
    talk.lines[:] = [line for line in talk.lines if "EVENT" not in line] + sorted(events)
