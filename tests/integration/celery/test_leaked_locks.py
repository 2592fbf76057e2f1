"""However a task ends, its locks are released, by its own code or by ours."""

import re

import pytest
from support.worker import Worker
from support.zoo import eventually

AT_ONCE = 1.5  # seconds, less than the timeout of a session, so that what is free sooner was released

WAYS = ["success", "exception", "retry", "Ignore", "Reject", "Reject and requeue"]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("task", ["locked_end", "block_end", "forgetful_end"])
def test_a_lock_is_free_at_once_however_its_task_ends(worker, task, way):
    """The next task acquires the lock long before the session of the process ends, which stays open."""
    key, gate = f"{task}-{way.replace(' ', '-')}", worker.gate()
    worker.send(task, key, way, "linger", str(gate))
    pid = gate.wait_at_work()
    (node,) = worker.zoo.wait_contenders(key, 1)
    gate.open()
    eventually(lambda: node not in worker.zoo.children(key), AT_ONCE, "the lock is kept")
    worker.zoo.wait_contenders(key, 0)
    assert pid in worker.children()


def test_a_task_that_runs_out_of_memory_frees_its_lock(zoo, tmp_path):
    """Celery ends the whole worker after a `MemoryError`. The lock is released when the block is left."""
    with Worker(zoo, tmp_path, concurrency=1) as worker:
        gate = worker.gate()
        worker.send("block_end", "memory", "out of memory", "linger", str(gate))
        gate.wait_at_work()
        gate.open()
        zoo.wait_contenders("memory", 0, 12)


def test_a_forgotten_lock_is_reported(worker):
    result = worker.send("forgetful_end", "reported", "success", "tell", None)
    worker.get(result)
    line = rf"without releasing the lock 'reported', which is released now \[task forgetful_end {result.id}\]"
    eventually(lambda: re.search(line, worker.log.read_text()))


def test_receivers_of_signals_may_hold_a_lock_around_a_task(worker):
    """The lock is held until their receiver of the end has released it, though ours was connected first."""
    mark = worker.home / "owned"
    worker.run("held_by_receivers", "around", str(mark))
    worker.zoo.wait_contenders("around", 0, AT_ONCE)
    assert mark.read_text() == "True"
    assert "without releasing the lock 'around'" not in worker.log.read_text()


def test_a_block_that_was_never_left_is_closed(worker):
    for _ in range(3):
        worker.run("half_open", "half-open")
        worker.zoo.wait_contenders("half-open", 0, AT_ONCE)
    worker.run("plain", "half-open")


@pytest.mark.parametrize("task", ["forget_in_coroutine", "forget_in_thread", "acquire_twice"])
def test_a_lock_that_only_its_ended_owner_could_release_is_released(worker, task):
    worker.run(task, task)
    worker.zoo.wait_contenders(task, 0, AT_ONCE)


def test_a_task_within_a_task_gives_back_its_own_share_only(worker):
    assert worker.run("careful_whole", "outer", "inner") == [True, False, False, False]


@pytest.mark.parametrize(
    "pool", [pytest.param("threads", marks=pytest.mark.chaos), "gevent", pytest.param("solo", marks=pytest.mark.chaos)]
)
def test_tasks_of_one_process_release_their_own_locks(request, pool):
    worker = request.getfixturevalue(f"{pool}_worker")
    gate = worker.gate()
    held = worker.send("forgetful_end", "held", "success", "linger", str(gate)) if pool != "solo" else None
    if held is not None:
        gate.wait_at_work()
    for number in range(5):
        worker.run("forgetful_end", f"forgotten{number}", "success", "tell", None)
        worker.run("half_open", f"open{number}")
    eventually(lambda: len(worker.zoo.contenders()) == (0 if held is None else 1), AT_ONCE)
    if held is not None:
        worker.zoo.wait_contenders("held", 1)
        gate.open()
        worker.get(held)
    worker.zoo.assert_empty()
