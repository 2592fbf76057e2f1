"""The next task of a canvas finds the lock of the one before it free, although its release is late."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from celery import Signature, chain, chord
from support.ensemble import Ensemble
from support.proxy import DELETE, Proxy
from support.worker import Worker
from support.zoo import Zoo

LATER = 0.4  # seconds until ZooKeeper gets a release


@pytest.fixture(scope="module", params=["prefork", pytest.param("threads", marks=pytest.mark.chaos)])
def late(
    request: pytest.FixtureRequest, single: Ensemble, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Worker]:
    """A worker whose releases are late."""
    home = tmp_path_factory.mktemp("late")
    with (
        Zoo(single.hosts, single) as zoo,
        Proxy(zoo.address) as proxy,
        Worker(zoo, home, pool=request.param, hosts=proxy.address) as worker,
    ):
        proxy.delay_op(DELETE, LATER)
        yield worker
        proxy.heal()


def task(worker: Worker, policy: str, key: str) -> Signature:
    """Return a task with this policy; its result is "done", unless it is skipped."""
    signature: Signature = worker.app.signature(f"policy.{policy}", args=[key], immutable=True)
    return signature


@pytest.mark.parametrize("first", ["wait", "raise"])
def test_the_next_task_of_a_chain_is_not_skipped(late: Worker, first: str) -> None:
    """The lock of the first one is the main process's, or that of the pool process."""
    result = chain(task(late, first, first), task(late, "value", first)).apply_async()
    assert late.get(result) == "done"


def test_the_body_of_a_chord_is_not_skipped_if_another_part_is_the_last(late: Worker) -> None:
    last = late.app.signature("ping", immutable=True).set(countdown=LATER / 2)
    result = chord([task(late, "wait", "chord"), last], task(late, "value", "chord")).apply_async()
    assert late.get(result) == "done"
