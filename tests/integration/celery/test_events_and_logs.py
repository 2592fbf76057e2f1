"""A worker shows its locks in events, `inspect zklocks` and log lines, each with its task."""

import contextlib
import functools
import json
import threading

import pytest
from celery.bin.base import CLIContext
from celery.bin.control import inspect
from celery.events.state import State
from click.testing import CliRunner
from support.databases import database, sqlite
from support.quietevents import RECORD
from support.refused import no_deletes
from support.waitingtasks import ENDS
from support.worker import Worker
from support.zoo import eventually

import django_zklock.contrib.celery.control  # noqa: F401 - the command
from django_zklock.contrib.events.models import Event


@pytest.fixture(params=["prefork", pytest.param("threads", marks=pytest.mark.chaos)])
def shared_worker(request):
    return request.getfixturevalue(f"{request.param}_worker")


@contextlib.contextmanager
def events(worker):
    received = []
    stop = threading.Event()
    ready = threading.Event()

    def receive():
        with worker.app.connection_for_read() as connection:
            receiver = worker.app.events.Receiver(connection, handlers={"*": received.append})
            with receiver.consumer_context() as (consuming, _, _):
                ready.set()
                while not stop.is_set():
                    with contextlib.suppress(TimeoutError, OSError):
                        consuming.drain_events(timeout=0.2)

    thread = threading.Thread(target=receive)
    thread.start()
    try:
        assert ready.wait(10)
        yield received
    finally:
        stop.set()
        thread.join()


def test_events_tell_of_waiting_and_of_the_grant(worker):
    with events(worker) as heard:
        first, gate = worker.begin("patient", "seen")
        second = worker.send("patient", "seen")
        worker.zoo.wait_contenders("seen", 2)

        def told(kind, task_id):
            return [event for event in heard if (event["type"], event.get("uuid")) == (kind, task_id)]

        (waiting,) = eventually(lambda: told("task-lock-waiting", second.id))
        assert (waiting["name"], waiting["lock"]) == ("patient", "seen")
        assert first.id in waiting["ahead"]
        gate.open()
        worker.get(second)
        for task_id in (first.id, second.id):
            (granted,) = eventually(functools.partial(told, "task-lock-acquired", task_id))
            assert granted["token"] > 0
            eventually(functools.partial(told, "task-succeeded", task_id), message=heard)

    state = State()  # as monitors use it
    for event in heard:
        state.event(event)
    assert state.tasks[second.id].state == "SUCCESS"


def test_inspect_lists_what_the_processes_hold_and_wait_for(worker):
    with worker.zoo.hold_elsewhere("foreign"):
        held, gate = worker.begin("patient", "inspected")
        waits = worker.send("patient", "inspected")
        worker.zoo.wait_contenders("inspected", 2)
        answer = worker.ask("zklocks")
        gate.open()
    assert answer["problem"] == ""
    ((mine,), (other,)) = answer["held"], answer["waiting"]
    assert (mine["lock"], mine["task"], mine["id"]) == ("inspected", "patient", held.id)
    assert (other["lock"], other["id"], other["ahead"]) == ("inspected", waits.id, 1)
    assert {mine["pid"], other["pid"]} <= worker.children() | {worker.process.pid}
    worker.get(waits)


def test_inspect_lists_a_lock_that_is_kept_for_the_next_task(worker):
    worker.get(worker.send("lingers", "kept"))
    eventually(lambda: worker.ask("zklocks")["idle"])
    answer = worker.ask("zklocks")
    ((idle,), held) = answer["idle"], answer["held"]
    assert (idle["lock"], idle["idle_for"] > 0.5, held) == ("kept", True, [])
    assert idle["pid"] in worker.children() | {worker.process.pid}
    with worker.zoo.hold_elsewhere("kept"):
        worker.zoo.wait_contenders("kept", 1)


def test_the_command_line_inspects(worker):
    context = CLIContext(app=worker.app, no_color=True, workdir=None)
    ended = CliRunner().invoke(inspect, ["zklocks", "--json", "-t", "10", "-d", worker.name], obj=context)
    assert ended.exit_code == 0, ended.output
    assert json.loads(ended.stdout) == {worker.name: {"held": [], "idle": [], "waiting": [], "problem": ""}}


@pytest.mark.parametrize("shared_worker", ["prefork"], indirect=True)  # a thread cannot be aborted in its sleep
def test_a_log_line_about_a_lock_names_the_task(worker):
    with events(worker) as heard:
        gate = worker.gate()
        result = worker.send("loses_block", "gone", str(gate))
        gate.wait_at_work()
        worker.zoo.delete("gone")
        worker.wait_failed(result)
        for begin in ("lock 'gone' is lost: ", "work under lock 'gone' ended "):
            eventually(lambda begin=begin: begin in worker.log.read_text())
            (line,) = [line for line in worker.log.read_text().splitlines() if begin in line]
            assert line.endswith(f"[task loses_block {result.id}]")
        eventually(lambda: [event["uuid"] for event in heard if event["type"] == "task-lock-lost"] == [result.id])


@pytest.mark.parametrize("pool", ["prefork", pytest.param("threads", marks=pytest.mark.chaos)])
def test_a_worker_writes_what_is_left_when_it_ends(zoo, tmp_path, pool, django_db_blocker):
    settings = sqlite(tmp_path / "events.sqlite3")
    env = {RECORD: "600", "TEST_DATABASES": json.dumps({"default": settings})}
    with django_db_blocker.unblock(), database(settings, Event) as alias:
        with Worker(zoo, tmp_path, pool=pool, env=env) as worker:
            with events(worker) as heard:
                first = worker.send("plain", "a")
                worker.get(first)
                worker.run("waiting.wait", "b")
                with worker.app.events.default_dispatcher() as dispatcher:
                    dispatcher.send("mark")
                eventually(lambda: [event["type"] for event in heard] == ["mark"])
            assert worker.stop() == 0
        rows = {row.key: row for row in Event._default_manager.using(alias).all()}
    assert {row.outcome for row in rows.values()} == {Event.RELEASED}
    assert set(rows) == {"a", "b"}
    assert rows["a"].work == f"task plain {first.id}"
    assert (rows["a"].pid == worker.process.pid) is (pool == "threads")


@pytest.mark.parametrize("pool", ["prefork", pytest.param("threads", marks=pytest.mark.chaos)])
def test_a_refused_release_is_told_by_the_main_process_alone(zoo, tmp_path, pool, django_db_blocker):
    """The pool process, whose hold it was, does not say that the lock was released; nor does its row."""
    settings, ends = sqlite(tmp_path / "events.sqlite3"), tmp_path / "ends"
    env = {ENDS: str(ends), RECORD: "0.2", "TEST_DATABASES": json.dumps({"default": settings})}
    with django_db_blocker.unblock(), database(settings, Event) as alias:
        rows = Event._default_manager.using(alias)
        with Worker(zoo, tmp_path, pool=pool, concurrency=1, env=env) as worker:
            main = worker.process.pid
            (holder,) = worker.children() or {main}
            with no_deletes(zoo, "refused"):
                worker.run("waiting.wait", "refused")
                eventually(lambda: rows.filter(outcome=Event.REFUSED).exists(), 20)
            worker.run("waiting.wait", "free")
            expected = [f"refused refused {main}", f"released free {holder}"]
            eventually(lambda: ends.read_text().splitlines() == expected)
            assert worker.stop() == 0
        assert ends.read_text().splitlines() == expected
        written = rows.order_by("pk").values_list("key", "outcome", "pid")
        assert [*written] == [("refused", Event.REFUSED, holder), ("free", Event.RELEASED, holder)]
