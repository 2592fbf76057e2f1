"""The app of events in a Celery worker."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pytest_django import DjangoDbBlocker
from support.databases import database, sqlite
from support.quietevents import RECORD
from support.worker import Worker
from support.zoo import Zoo

from django_zklock.contrib.events.models import Attempt

pytestmark = pytest.mark.zookeeper


@pytest.mark.parametrize("pool", ["prefork", pytest.param("threads", marks=pytest.mark.chaos)])
def test_a_worker_writes_what_is_left_when_it_ends(
    zoo: Zoo, tmp_path: Path, pool: str, django_db_blocker: DjangoDbBlocker
) -> None:
    """So do the processes of its pool, wherever the task waits. The work is the task."""
    settings = sqlite(tmp_path / "events.sqlite3")
    env = {RECORD: "600", "TEST_DATABASES": json.dumps({"default": settings})}
    with django_db_blocker.unblock(), database(settings, Attempt) as alias:
        with Worker(zoo, tmp_path, pool=pool, env=env, options=["--include=support.waitingtasks"]) as worker:
            first = worker.send("plain", "a")
            worker.get(first)
            worker.run("waiting.wait", "b")
            assert worker.stop() == 0
        rows = {attempt.key: attempt for attempt in Attempt._default_manager.using(alias).all()}
    assert {row.outcome for row in rows.values()} == {Attempt.RELEASED}
    assert set(rows) == {"a", "b"}
    assert rows["a"].work == f"task plain {first.id}"
    assert (rows["a"].pid == worker.process.pid) is (pool == "threads")
