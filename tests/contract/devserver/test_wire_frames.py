"""The dev server answers as ZooKeeper does: frames that are none, and four-letter words."""

from __future__ import annotations

import re
import time

import pytest
from support.ensemble import four_letter
from support.jute import EPHEMERAL, boolean, buffer, create, exists, integer
from support.transcripts import STILL, Pair, compare
from support.wire import Talk

pytestmark = pytest.mark.zookeeper


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
