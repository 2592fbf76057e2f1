"""A worker tells of the locks of its tasks, in log lines and in rows of the past."""

import json

import pytest
from support.databases import database, sqlite
from support.quietevents import RECORD
from support.worker import Worker
from support.zoo import eventually

from django_zklock.contrib.events.models import Event


@pytest.fixture(params=["prefork", pytest.param("threads", marks=pytest.mark.chaos)])
def shared_worker(request):
    return request.getfixturevalue(f"{request.param}_worker")


@pytest.mark.parametrize("shared_worker", ["prefork"], indirect=True)  # a thread cannot be aborted in its sleep
def test_a_log_line_about_a_lock_names_the_task(worker):
    gate = worker.gate()
    result = worker.send("loses_block", "gone", str(gate))
    gate.wait_at_work()
    worker.zoo.delete("gone")
    worker.wait_failed(result)
    for begin in ("lock 'gone' is lost: ", "work under lock 'gone' ended "):
        eventually(lambda begin=begin: begin in worker.log.read_text())
        (line,) = [line for line in worker.log.read_text().splitlines() if begin in line]
        assert line.endswith(f"[task loses_block {result.id}]")


@pytest.mark.parametrize("pool", ["prefork", pytest.param("threads", marks=pytest.mark.chaos)])
def test_a_worker_writes_what_is_left_when_it_ends(zoo, tmp_path, pool, django_db_blocker):
    settings = sqlite(tmp_path / "events.sqlite3")
    env = {RECORD: "600", "TEST_DATABASES": json.dumps({"default": settings})}
    with django_db_blocker.unblock(), database(settings, Event) as alias:
        with Worker(zoo, tmp_path, pool=pool, env=env) as worker:
            first = worker.send("plain", "a")
            worker.get(first)
            worker.run("waiting.wait", "b")
            assert worker.stop() == 0
        rows = {row.key: row for row in Event._default_manager.using(alias).all()}
    assert {row.outcome for row in rows.values()} == {Event.RELEASED}
    assert set(rows) == {"a", "b"}
    assert rows["a"].work == f"task plain {first.id}"
    assert (rows["a"].pid == worker.process.pid) is (pool == "threads")
