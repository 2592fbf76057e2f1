"""Several `celery beat` processes share one schedule: one leads, the others stand by."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.beats import Beats, each_tick_once
from support.zoo import Zoo

pytestmark = pytest.mark.zookeeper


@pytest.fixture
def beats(zoo: Zoo, tmp_path: Path) -> Iterator[Beats]:
    """Beats whose one entry is due every half second."""
    with Beats(zoo, tmp_path, {"often": 0.5}) as beats:
        yield beats


@pytest.mark.scenario("F69")
def test_one_of_two_beats_sends_and_the_next_goes_on_at_once_when_it_stops(beats: Beats) -> None:
    """Of two schedulers one enqueues each tick; an orderly stop hands the lead over without a gap."""
    (first,) = beats.start("first")
    beats.wait_sent(2)
    (second,) = beats.start("second")
    beats.wait_queue(first, second)
    before = beats.sent()[-1]
    beats.wait_sent(2, since=before.at)
    began = time.monotonic()
    assert first.stop() == 0
    after = beats.wait_sent(2, since=began)
    assert after[0].at - began < 0.5 + 0.8
    messages = beats.sent()
    each_tick_once(messages)
    assert [message.tick for message in messages] == list(range(1, len(messages) + 1))
    assert len({message.token for message in messages}) == 2
    assert beats.records()["often"]["total_run_count"] >= messages[-1].tick
