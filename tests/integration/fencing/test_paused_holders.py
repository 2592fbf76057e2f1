"""A holder that is paused in its transaction and continues after a newer one has written commits nothing."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db import connections
from support.ensemble import Ensemble
from support.ledgers.models import Account
from support.pausing import USING, WAYS, pair, play
from support.zoo import Zoo

pytestmark = [pytest.mark.zookeeper, pytest.mark.chaos]

ROUNDS = 100
PAIRS = 5  # that play at once, each on a row of its own
TICK = 0.2
SESSION_TIMEOUT = 0.8


@pytest.fixture
def arena() -> Iterator[Zoo]:
    """A server with short sessions."""
    with Ensemble(tick=TICK) as ensemble:
        zoo = Zoo(ensemble.hosts, ensemble)
        yield zoo
        zoo.close()


@pytest.fixture
def databases(database_settings: dict[str, Any]) -> dict[str, Any]:
    """The databases of the processes."""
    return {USING: database_settings}


def rounds(arena: Zoo, using: str, databases: dict[str, Any], numbers: range) -> list[float]:
    row = Account(name="a")
    row.save(using=using)
    ways = list(WAYS)
    try:
        with pair(arena, databases, SESSION_TIMEOUT) as writers:
            return [play(writers, using, ways[number % len(ways)], row.pk, number) for number in numbers]
    finally:
        connections[using].close()


@pytest.mark.scenario("F52")
@pytest.mark.timeout(600)
def test_no_paused_holder_ever_commits(arena: Zoo, databases: dict[str, Any], ledger: str, figure: Any) -> None:
    """A hundred times, without exception."""
    share = ROUNDS // PAIRS
    with ThreadPoolExecutor(PAIRS) as pool:
        games = [
            pool.submit(rounds, arena, ledger, databases, range(start, start + share))
            for start in range(0, ROUNDS, share)
        ]
        stopped = [pause for game in games for pause in game.result()]
    assert len(stopped) == ROUNDS
    figure("late commits refused", f"{len(stopped)} of {ROUNDS}, on {connections[ledger].vendor}")
    figure.spread("stopped for", stopped)
