"""Servers that lose all their data cost the locks that were held, and nothing after that."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.chaos.servers import replace_client
from support.chaos.worker_pool import WorkerPool
from support.ensemble import Ensemble

from django_zklock.core.zk.lease import LEASE_SHARE

pytestmark = [pytest.mark.zookeeper]

TIMEOUT = 2.0
REPLACED = 4  # session timeouts until a client that gets no way in is replaced, and some more for that
LATER = 0.5  # seconds of room for a busy machine


@pytest.fixture
def ensemble() -> Iterator[Ensemble]:
    with Ensemble() as ensemble:
        yield ensemble


def test_an_ensemble_that_lost_its_data_is_reported(pool: WorkerPool, ensemble: Ensemble) -> None:
    """
    It refuses clients that have seen its future for ever, so they are replaced.

    Its transactions, and so the tokens, are counted from 0 again.
    """
    a, b = pool.start("A", "B", session_timeout=TIMEOUT)
    for _ in range(20):
        a.must_acquire()
        a.release().result()
    old = a.must_acquire()["token"]
    working = a.work()
    waiting = b.acquire(timeout=60)
    pool.wait_contenders(2)
    wiped = pool.note("wipe")
    ensemble.stop()
    outcome = working.result(10)
    assert outcome["lost"]
    assert outcome["t"] - wiped <= LEASE_SHARE * TIMEOUT + LATER
    released = a.release()
    ensemble.start()
    pool.note("done", of="wipe")
    replace_client(pool.zoo)
    answer = waiting.result(REPLACED * TIMEOUT + 5)
    assert answer["granted"]
    assert answer["token"] < old, "the tokens did not start again, so this proves nothing"
    again = a.acquire(timeout=20)
    b.work(seconds=0.5).result()
    assert not again.done()
    b.release().result()
    assert again.result(25)["granted"]
    a.release().result()
    released.result(10)
    pool.assert_kept()
