"""Tasks that are delivered again whenever a process is killed have each effect once, and in turn."""

from __future__ import annotations

import contextlib
import itertools
import random
from pathlib import Path
from typing import Any

import pytest
from support.brokers import RabbitMQ, Redis
from support.chaos.checker import Verdict
from support.chaos.report import Figures
from support.payment_workers import PaymentWorkers, wait_booked
from support.trail import Trail
from support.zoo import Zoo

KEYS = ("a", "b", "c", "d", "e")
EVERY = 5.0  # seconds between two kills
RETURN = 20.0  # seconds until Redis brings a task back; longer than a task that comes again waits for its next try

pytestmark = pytest.mark.zookeeper


def report(figure: Figures, workers: PaymentWorkers, verdict: Verdict, seconds: float) -> None:
    """Note what a run did."""
    for label, count in sorted({**workers.done, **workers.count_deliveries()}.items()):
        figure(label, count)
    print(dict(workers.done))
    figure("tasks", len(workers.results))
    figure("booked by a run that was killed afterwards", workers.count_in_vain())
    figure("all done after", seconds, "s")
    figure.spread("hand-off", verdict.figures.handoffs)


def test_a_few_payments_survive_a_kill(zoo: Zoo, redis: Redis, tmp_path: Path) -> None:
    """The short form of the next one: a process is killed in the middle of its work."""
    redis.clear()
    chance = random.Random(6)
    with PaymentWorkers(
        zoo, tmp_path, redis.conf, KEYS, workers=2, concurrency=4, session_timeout=2, chance=chance
    ) as workers:
        workers.send(60)
        wait_booked(workers, 10)
        workers.kill_process()
        workers.wait_done(40)
        workers.stop()
        workers.assert_kept()


TROUBLED: dict[str, Any] = {"every": 2.0, "tasks": ["pay"], "troubled": True}
WAYS: dict[str, dict[str, Any]] = {
    "kills": {"count": 500},
    "faults": {"count": 300, **TROUBLED},
    "faults, and only some workers let them wait": {"count": 200, **TROUBLED, "mixed": True},
}
"""How many payments are sent, how often harm is done, and other options of `PaymentWorkers`."""


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("way", "broker"), [*itertools.product(WAYS, ["redis"]), ("kills", "rabbitmq"), ("faults", "rabbitmq")]
)
def test_payments_survive(
    request: pytest.FixtureRequest, zoo: Zoo, tmp_path: Path, figure: Figures, way: str, broker: str
) -> None:
    """
    None of them is lost, and none booked twice, and the work under each key is done in turn.

    Processes are killed, or killed, paused, interrupted and cut off. A message that Redis and a killed worker have lost
    between them is sent again, and counted in the figures.
    """
    server: RabbitMQ | Redis = request.getfixturevalue(broker)
    server.clear()
    conf: dict[str, Any] = server.returning(RETURN) if isinstance(server, Redis) else server.conf
    seed: int = request.config.getoption("--soak-seed")
    options = {"every": EVERY, **WAYS[way]}
    count, every = options.pop("count"), options.pop("every")
    with contextlib.ExitStack() as stack:
        options["trail"] = stack.enter_context(Trail(server)) if isinstance(server, Redis) else None
        options["chance"] = random.Random(seed)
        workers = stack.enter_context(
            PaymentWorkers(zoo, tmp_path, conf, KEYS, workers=2, concurrency=4, session_timeout=4, **options)
        )
        workers.send(count)
        seconds = workers.wait_done(300, every=every)
        workers.stop()
        for key in KEYS:
            zoo.wait_contenders(key, 0, timeout=2)
        verdict = workers.assert_kept()
        figure("seed", seed)
        report(figure, workers, verdict, seconds)


def test_the_checker_accuses_payments_without_a_lock(zoo: Zoo, redis: Redis, tmp_path: Path) -> None:
    """Without a lock the same tasks run at the same time, and the history shows it."""
    redis.clear()
    with PaymentWorkers(
        zoo,
        tmp_path,
        redis.conf,
        KEYS[:1],
        workers=1,
        concurrency=4,
        session_timeout=4,
        tasks=["pay_unguarded"],
        chance=random.Random(6),
    ) as workers:
        workers.send(20)
        workers.wait_done(40)
        workers.stop()
        assert "exclusion" in workers.check_history().rules
