"""Tasks that wait in the main process of a worker: on Redis, whose workers have an event loop, and on files."""

import time

import pytest
from celery import chord
from celery.exceptions import ChordError, TaskRevokedError, TimeLimitExceeded, WorkerLostError
from support.faults import within
from support.waitingtasks import COUNT
from support.worker import Worker
from support.zoo import Zoo, eventually

from django_zklock.contrib.celery.dispatch.pool_grants import MOST_IN_QUEUE
from django_zklock.contrib.celery.messages import COPY_HEADER
from django_zklock.core.queue.nodes import Kind
from django_zklock.exceptions import LockLost, LockTimeout
from django_zklock.inspection import look_at
from django_zklock.operations import break_lock, request_release


@pytest.fixture(scope="module", params=["redis", pytest.param("files", marks=pytest.mark.chaos)])
def shared_worker(request, single, tmp_path_factory):
    if request.param == "redis":
        yield request.getfixturevalue("redis_worker")
        return
    home = tmp_path_factory.mktemp("worker")
    with Zoo(single.hosts, single) as zoo, Worker(zoo, home) as worker:
        yield worker


def busy_processes(worker):
    return [worker.begin("waiting.wait", f"busy-{number}") for number in range(2)]


def test_a_waiting_task_needs_no_process(worker):
    with worker.zoo.hold_elsewhere("free"):
        waiting = [worker.send("waiting.wait", "free") for _ in range(6)]
        worker.zoo.wait_contenders("free", 7)
        worker.run("waiting.wait", "other")
        assert len(worker.zoo.children("free")) == 7
    for result in waiting:
        worker.get(result)


def test_tasks_run_in_the_order_in_which_they_came(worker):
    book = worker.home / "order"
    marks = [str(number) for number in range(12)]
    with worker.zoo.hold_elsewhere("order"):
        results = []
        for number, mark in enumerate(marks):
            results.append(worker.send("waiting.note", "order", str(book), mark))
            worker.zoo.wait_contenders("order", number + 2)
    for result in results:
        worker.get(result)
    assert book.read_text().split() == marks


def test_the_pool_process_has_the_hold(worker):
    account = worker.run("waiting.tell", "account")
    assert account["parent"] == worker.process.pid
    assert account["state"] == "held"
    assert account["token"] == account["again"] > 0
    assert "/account/_c_" in account["path"]
    assert (account["template"], 0 < account["lease"] <= 8) == ("{key}", True)


def test_a_worker_keeps_a_lock_that_lingers_for_its_next_task(worker):
    book = worker.home / "lingers"
    marks = [str(number) for number in range(12)]
    results = [worker.send("waiting.lingers", "lingers", str(book), mark) for mark in marks]
    tokens_and_pids = [worker.get(result) for result in results]
    assert len({token for token, _ in tokens_and_pids}) == 1
    assert {pid for _, pid in tokens_and_pids} <= worker.children()
    assert sorted(book.read_text().split(), key=int) == marks
    assert len(worker.zoo.children("lingers")) == 1
    with worker.zoo.hold_elsewhere("lingers") as path:
        eventually(lambda: worker.zoo.children("lingers") == [path.rpartition("/")[2]])
        later = worker.send("waiting.lingers", "lingers", str(book), "later")
        worker.zoo.wait_contenders("lingers", 2)
    assert worker.get(later)[0] > tokens_and_pids[0][0]
    with worker.zoo.hold_elsewhere("lingers"):
        worker.zoo.wait_contenders("lingers", 1)


def test_a_lock_that_is_not_waited_for_is_free_before_the_result_is_stored(worker):
    """Also that of a task which fails. So the next task, which would not wait either, is not skipped."""
    for _ in range(20):
        assert worker.run("policy.skip", "ended") == "done"
        assert worker.zoo.children("ended") == []
        with pytest.raises(ValueError, match="on purpose"):
            worker.run("policy.skip", "ended", "fail", "on purpose")
        assert worker.zoo.children("ended") == []


def test_a_release_by_hand_waits_until_the_main_process_has_released_the_lock(worker):
    """The task has acquired its lock once more. `release()` is the way to tell others afterwards."""
    for _ in range(20):
        assert worker.run("waiting.releases", "by-hand")


def test_the_znode_shows_the_pool_process_that_works(worker):
    gate = worker.gate()
    with worker.zoo.hold_elsewhere("seen"):
        result = worker.send("waiting.wait", "seen", "linger", str(gate))
        worker.zoo.wait_contenders("seen", 2)
        waits = worker.zoo.payloads("seen")[1]
        assert (waits.pid, waits.about["id"]) == (worker.process.pid, result.id)
    pid = gate.wait_at_work()

    def shown():
        (works,) = worker.zoo.payloads("seen")
        return works is not None and works.pid == pid and works.about["id"] == result.id

    eventually(shown, 3)
    gate.open()
    worker.get(result)


def test_a_task_queues_for_its_lock_only_with_a_free_process(worker):
    tasks = busy_processes(worker)
    result = worker.send("waiting.wait", "idle")
    eventually(lambda: result.id in {task["id"] for task in worker.ask("reserved")})
    with worker.zoo.hold_elsewhere("idle"):
        assert len(worker.zoo.children("idle")) == 1
    worker.finish(tasks)
    assert worker.get(result)["headers"] == {}


@pytest.mark.parametrize("task", ["waiting.wait", "waiting.insists"])
def test_a_lock_granted_without_a_free_process_is_released(worker, task):
    book, log = worker.home / f"given-back-{task}", worker.log.stat().st_size
    with worker.zoo.hold_elsewhere("given"):
        waiting = []
        for number in range(2):
            waiting.append(worker.send("waiting.note", "given", str(book), str(number)))
            worker.zoo.wait_contenders("given", 2 + number)
        waiting.append(worker.send(task, "given"))
        worker.zoo.wait_contenders("given", 4)
        tasks = busy_processes(worker)
    worker.zoo.wait_contenders("given", 0, timeout=2)
    with worker.zoo.hold_elsewhere("given"):  # it is free for others
        assert len(worker.zoo.children("given")) == 1
    worker.finish(tasks)
    for result in waiting:
        worker.get(result)
    assert book.read_text().split() == ["0", "1"]
    assert "retry: Retry in" not in worker.log.read_text()[log:]


def test_tasks_that_have_waited_begin_no_faster_than_their_rate_limit(worker):
    name, book = "sharing.read.wait", worker.home / "limited"

    def limit(rate):
        assert "ok" in worker.ask("rate_limit", arguments={"task_name": name, "rate_limit": rate})

    with worker.zoo.hold_elsewhere("limited", Kind.WRITE):
        results = [worker.send(name, "limited", "tell", None, str(book)) for _ in range(12)]
        worker.zoo.wait_contenders("limited", 13)
        limit("5/s")
    for result in results:
        worker.get(result)
    limit("0")
    began = sorted(float(line.split()[1]) for line in book.read_text().splitlines())
    assert len(began) == 12
    assert began[-1] - began[0] > (12 - 3) / 5


def test_a_copy_does_not_run_and_another_call_with_its_id_does(worker):
    book = worker.home / "twice"
    with worker.zoo.hold_elsewhere("twice"):
        for mark, headers in (("x", {}), ("x", {COPY_HEADER: time.time()}), ("y", {})):
            waiting = len(worker.zoo.children("twice"))
            worker.send("waiting.note.late", "twice", str(book), mark, task_id="twice", headers=headers)
            worker.zoo.wait_contenders("twice", waiting + 1)
    eventually(lambda: "waiting.note.late[twice] ignored" in worker.log.read_text(), 20)
    eventually(lambda: book.read_text().split() == ["x", "y"], 20)


def test_all_waiting_tasks_are_visible(worker):
    count = worker.home / COUNT
    with worker.zoo.hold_elsewhere("seen"):
        sent = [worker.send("waiting.wait", "seen") for _ in range(MOST_IN_QUEUE + 10)]
        eventually(lambda: count.exists() and count.read_text() == str(len(sent)), 20)
        worker.zoo.wait_contenders("seen", 1 + MOST_IN_QUEUE)
        assert {entry["request"]["id"] for entry in worker.ask("scheduled")} == {result.id for result in sent}
    for result in sent:
        worker.get(result)
    eventually(lambda: count.read_text() == "0")


def test_the_worker_keeps_no_state_of_ended_tasks(worker):
    results = [worker.send("waiting.patient", f"kept-{number}") for number in range(20)]
    for result in results:
        worker.get(result)
    eventually(lambda: worker.ask("count_waiting")["waiting"] <= 1, 10)  # the last one may still be a local variable


def test_a_coroutine_acquires_its_lock_itself(worker):
    assert worker.run("waiting.coroutine", "coroutine")
    worker.zoo.wait_contenders("coroutine", 0, timeout=2)


def test_a_task_with_several_locks_gets_all_of_them_in_time_or_none(worker):
    with worker.zoo.hold_elsewhere("second"):
        assert isinstance(worker.wait_failed(worker.send("waiting.two", "first", "second")), LockTimeout)
        worker.zoo.wait_contenders("first", 0, timeout=2)


def test_the_timeout_bounds_the_wait(worker):
    with worker.zoo.hold_elsewhere("bounded"):
        assert isinstance(worker.wait_failed(worker.send("waiting.bounded", "bounded")), LockTimeout)
        worker.zoo.wait_contenders("bounded", 1, timeout=2)


def test_a_task_with_a_timeout_is_sent_again(worker):
    with worker.zoo.hold_elsewhere("patient"):
        result = worker.send("waiting.patient", "patient")
        worker.zoo.wait_contenders("patient", 2)
        eventually(lambda: result.state == "RETRY")
    assert worker.get(result)


@pytest.mark.parametrize("way", ["revoked", "expired"])
def test_a_revoked_or_expired_task_leaves_the_queue(worker, way):
    with worker.zoo.hold_elsewhere(way):
        result = worker.send("waiting.wait", way, **({"expires": 5} if way == "expired" else {}))
        worker.zoo.wait_contenders(way, 2)
        if way == "revoked":
            result.revoke()
        worker.zoo.wait_contenders(way, 1, timeout=8)
        assert isinstance(worker.wait_failed(result), TaskRevokedError)


def test_a_skipped_task_fails_a_chord(worker):
    """Also if the backend counts its parts."""
    with worker.zoo.hold_elsewhere("chord"):
        parts = [worker.app.signature("skipping", (key,)) for key in ("chord", "free")]
        result = chord(parts, app=worker.app)(worker.app.signature("follow", (str(worker.home / "body"),)))
        with pytest.raises((ChordError, TaskRevokedError)):
            worker.get(result)
    assert not (worker.home / "body").exists()


def test_a_broken_lock_stops_the_work(worker):
    gate = worker.gate()
    result = worker.send("waiting.wait", "broken", "sleep", str(gate))
    gate.wait_at_work()
    with worker.zoo.configured():
        lock = look_at("broken", reply_timeout=30)
        holder = lock.holders[0]
        break_lock("broken", guid=holder.guid, token=holder.token, reason="a test", by="tester")
    with within(5):
        error = worker.wait_failed(result)
    assert isinstance(error, LockLost)
    assert "deleted by another session" in str(error)


def test_a_long_hold_is_reported_once(worker):
    result, gate = worker.begin("waiting.slow", "slow")
    said = "longer than warn_after"
    eventually(lambda: said in worker.log.read_text())
    time.sleep(0.6)  # three times as long as until the first report
    gate.open()
    worker.get(result)
    (line,) = [line for line in worker.log.read_text().splitlines() if said in line]
    assert "ForkPoolWorker" in line
    assert "lock 'slow' (token " in line


def test_the_work_hears_of_a_release_request(worker):
    result = worker.send("waiting.polite", "polite")
    worker.zoo.wait_contenders("polite", 1)
    with worker.zoo.configured():
        eventually(lambda: request_release("polite", reason="a test", by="tester"))
    assert worker.get(result) == "tester"


@pytest.mark.parametrize(("way", "error"), [("kill", WorkerLostError), ("time_limit", TimeLimitExceeded)])
def test_a_process_that_is_killed_frees_its_lock(worker, way, error):
    gate, before = worker.gate(), worker.children()
    result = worker.send("waiting.wait", way, "spin", str(gate), **({way: 1} if way == "time_limit" else {}))
    if way == "kill":
        worker.kill_process(gate.wait_at_work())
        worker.zoo.wait_contenders(way, 0, timeout=2)
    assert isinstance(worker.wait_failed(result), error)
    worker.zoo.wait_contenders(way, 0, timeout=2)
    eventually(lambda: not before <= worker.children())
