"""The dev server answers as ZooKeeper does: containers, and nodes with a time to live."""

from __future__ import annotations

import time

import pytest
from support.jute import buffer, children, container, create, delete, exists, multi, ttl
from support.transcripts import REAPED, Pair, Script, changed_in_3_9, compare, scripts
from support.wire import Talk

pytestmark = pytest.mark.zookeeper


def empty_containers(talk: Talk) -> None:
    a = talk.a
    a.do(container("/never"), container("/used"), create("/used/a"), create("/plain"), create("/plain/a"))
    a.do(container("/outer"), container("/outer/inner"), create("/outer/inner/a"), delete("/outer/inner/a"))
    a.do(delete("/plain/a"), exists("/used", True), exists("/never", True), children("/", True), delete("/used/a"))
    time.sleep(6 * REAPED)  # more sweeps than it takes, as there is no event of what is not swept
    a.fence()
    talk.lines[:] = sorted(line for line in talk.lines if "EVENT" in line)  # their order is the sweep's
    talk.join("b").do(exists("/never"), exists("/used"), exists("/plain"), exists("/outer"), children("/"))


def time_to_live(talk: Talk) -> None:
    talk.a.do(ttl("/t", 500), ttl("/parent", 500), create("/parent/a"), ttl("/long", 60_000), exists("/t", True))
    talk.a.wait_event()
    talk.a.do(exists("/t"), exists("/parent"), exists("/long"), children("/"))


@changed_in_3_9
def only_the_server_reaps(talk: Talk) -> None:
    talk.a.do(container("/c"), ("deleteContainer", buffer("/c")))
    # Whether "/m" is there after that depends on when the next sweep comes.
    talk.join("b").do(exists("/c"), multi(container("/m"), container("/m/a"), delete("/m/a")))


@scripts(empty_containers, time_to_live, only_the_server_reaps)
def test_containers(pair: Pair, script: Script) -> None:
    """Containers that had children go when they are empty, nodes with a time to live when they are left alone."""
    compare(pair, script)
