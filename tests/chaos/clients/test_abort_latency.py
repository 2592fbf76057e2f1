"""Work under a lock ends soon after the connection is cut, whatever kind of work it is."""

from __future__ import annotations

import statistics

import pytest
from support.chaos.latency import WAYS, measure
from support.chaos.report import Figures
from support.zoo import Zoo

pytestmark = [pytest.mark.zookeeper]

ROUNDS = 30
SOON = 0.1  # seconds from the cut to the exception inside the work, at the median; promised


@pytest.mark.timeout(180)
@pytest.mark.parametrize("way", WAYS)
def test_a_cut_aborts_the_work_soon(zoo: Zoo, way: str, figure: Figures) -> None:
    """Every abort is delivered and leaves a receipt, and half of them take less than a tenth of a second."""
    if way.startswith("greenlets"):
        pytest.importorskip("gevent")
    measured = measure(zoo, way, ROUNDS)
    figure.spread("stopped after", measured.seconds)
    aborts = ROUNDS * max(1, WAYS[way].crowd)
    assert len(measured.seconds) == aborts
    assert [receipt["how"] for receipt in measured.receipts] == [WAYS[way].how] * aborts
    assert all(receipt["delivered"] and not receipt["swallowed"] for receipt in measured.receipts)
    assert all(0 < seconds < 2 for seconds in measured.seconds)
    assert statistics.median(measured.seconds) < SOON
