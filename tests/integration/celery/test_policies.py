"""A task whose lock is busy, for each policy, alone and in each canvas, on a real worker."""

import contextlib
import time

import pytest
from celery import chain, chord, group
from kazoo.exceptions import NoNodeError
from support import celeryapp
from support.policytasks import POLICIES, VALUE
from support.worker import outcome
from support.zoo import eventually

from django_zklock.contrib.celery.messages import CONFLICTS_HEADER, COPY_HEADER
from django_zklock.exceptions import LockLost

FINAL = ("raise", "skip", "value")  # end where they find the lock busy; the others go on when it is free


def task(worker, name, *args, **options):
    return worker.app.signature(name, args, **options)


def outcomes(worker, send):
    """Send something that needs a busy lock once for each policy; return the results."""
    sent = {}
    with contextlib.ExitStack() as busy:
        for policy in POLICIES:
            key = f"{policy}-{send.__name__}"
            busy.enter_context(worker.zoo.hold_elsewhere(key))
            sent[policy] = send(f"policy.{policy}", key)
        results = {policy: outcome(sent[policy]) for policy in FINAL}
        assert all(
            sent[policy].state not in ("SUCCESS", "FAILURE", "REVOKED") for policy in POLICIES if policy not in results
        )
        worker.zoo.wait_contenders(f"wait-{send.__name__}", 2)
    return {policy: results.get(policy) or outcome(sent[policy]) for policy in POLICIES}


OF_ITS_OWN = {
    "raise": "LockBusy",
    "skip": "TaskRevokedError",
    "value": VALUE,
    **dict.fromkeys(("retry", "wait"), "done"),
}
"""The outcome of a task where nothing but its policy counts."""


def test_policies_in_a_chain(worker):
    """The steps after a skipped task end with it, so that nothing waits for the last step in vain."""

    def steps(name, key):
        follow = task(worker, "policy.next")
        return chain(task(worker, name, key), follow, follow, app=worker.app).apply_async()

    assert outcomes(worker, steps) == OF_ITS_OWN


def test_policies_in_a_group(worker):
    def parts(name, key):
        sent = group([task(worker, name, key), task(worker, name, f"{key}-free")], app=worker.app).apply_async()
        assert worker.get(sent.results[1]) == "done"
        part = sent.results[0]
        return part

    assert outcomes(worker, parts) == OF_ITS_OWN


@pytest.mark.parametrize("last", [True, False], ids=["task", "chain"])
def test_policies_in_a_chord(worker, last):
    """The chord never waits for a skipped part, also if the task is not the step that the chord counts."""

    def parts(name, key):
        step = task(worker, name, key)
        part = step if last else chain(step, task(worker, "policy.next"), app=worker.app)
        header = [part, task(worker, name, f"{key}-free")]
        result = chord(header, app=worker.app)(task(worker, "policy.body"))
        return result

    parts.__name__ = f"parts-of-a-chord-{last}"
    assert outcomes(worker, parts) == {
        "raise": "ChordError",
        "skip": "ChordError",
        "value": [VALUE, "done"],
        **{policy: ["done", "done"] for policy in ("retry", "wait")},
    }


def test_policies_with_link_and_link_error(worker):
    marks = worker.home / "links"
    marks.mkdir()

    def linked(name, key):
        return worker.send(
            name,
            key,
            link=task(worker, "policy.next", str(marks / f"{key}-link")),
            link_error=task(worker, "policy.errback", str(marks / f"{key}-error")),
        )

    assert outcomes(worker, linked) == OF_ITS_OWN
    expected = {"raise-linked-error", *(f"{policy}-linked-link" for policy in ("value", "retry", "wait"))}
    eventually(lambda: {path.name for path in marks.iterdir()} >= expected)
    worker.run("ping")
    worker.run("ping")
    assert {path.name for path in marks.iterdir()} == expected


def test_policies_of_eager_tasks(zoo):
    """In the caller's own process nothing can be sent again, and no result can be revoked."""
    tasks = {policy: celeryapp.app.tasks[f"policy.{policy}"] for policy in POLICIES if policy != "wait"}
    with zoo.hold_elsewhere("eager"):
        results = {policy: task.apply(("eager",)).get(propagate=False) for policy, task in tasks.items()}
    assert {
        policy: type(value).__name__ if policy not in ("skip", "value") else value for policy, value in results.items()
    } == {**dict.fromkeys(("raise", "retry"), "LockBusy"), "skip": None, "value": VALUE}


def test_a_task_that_is_sent_again_keeps_its_place_in_the_canvas(worker):
    options = {
        "soft_time_limit": 20,
        "time_limit": 30,
        "priority": 3,
        "expires": 60,
        "queue": "other",
        "root_id": "root",
        "parent_id": "parent",
        "group_id": "group",
        "group_index": 3,
        "shadow": "shown",
        "stamped_headers": ["stamp"],
        "stamp": "value",
        "headers": {"mine": "x"},
    }
    with worker.zoo.hold_elsewhere("everything"):
        result = worker.send("policy.everything", "everything", **options)
        eventually(lambda: result.state == "RETRY")
    account = worker.get(result)
    assert account.pop("stamps") == {"stamp": "value"}
    assert account.pop("reply_to") is not None
    assert set(account.pop("headers")) >= {"mine", CONFLICTS_HEADER}
    kept = ("root_id", "parent_id", "group_index", "shadow", "priority", "queue")
    changed = {"group": "group", "limits": [30, 20], "expires": True}
    assert account == changed | {name: options[name] for name in kept}


@pytest.mark.parametrize("late", [False, True], ids=["early", "late"])
def test_a_task_that_cannot_be_sent_again_waits_in_its_slot(worker, late):
    key, journal = f"offline-{late}", worker.home / f"offline-{late}"
    with worker.zoo.hold_elsewhere(key):
        result = worker.send(f"offline.{late}", key, "tell", None, str(journal))
        worker.zoo.wait_contenders(key, 2)
    assert worker.get(result) == "done"
    assert len(lines(journal)) == 1
    assert worker.log.read_text().count(f"task '{result.id}' cannot be sent again") == 1


def test_a_task_that_waits_in_its_slot_expires_there(worker):
    key, journal = "expires-in-slot", worker.home / "expires-in-slot"
    with worker.zoo.hold_elsewhere(key):
        result = worker.send("offline.False", key, "tell", None, str(journal), expires=4)
        eventually(lambda: str(result.state) == "REVOKED", 20)
        worker.zoo.wait_contenders(key, 1)
    assert not journal.exists()


def test_a_task_that_waits_in_its_slot_holds_no_other_lock(worker):
    """With two decorators, it gives the outer lock back. So tasks with the same locks in another order go on."""
    with worker.zoo.hold_elsewhere("slot-b"):
        first = worker.send("offline.two", "slot-a", "slot-b")
        eventually(lambda: f"task '{first.id}' cannot be sent again" in worker.log.read_text(), 20)
        second = worker.send("offline.two", "slot-b", "slot-a")
        worker.zoo.wait_contenders("slot-b", 2)
        with worker.zoo.hold_elsewhere("slot-a"):
            assert not first.ready()
    assert [worker.get(first), worker.get(second)] == ["done"] * 2


def lose(worker, key, gate):
    gate.wait_at_work()
    (gate.path / "entered").unlink()
    (name,) = worker.zoo.children(key)
    with contextlib.suppress(NoNodeError):
        worker.zoo.client.delete(f"{worker.zoo.base}/{key}/{name}")


def test_a_task_that_lost_its_lock_may_run_again(worker):
    """With `on_lost="retry"` it is sent again, which does not count as its own retry."""
    gate = worker.gate()
    result = worker.send("policy.unlucky", "unlucky", str(gate))
    for _ in range(2):
        lose(worker, "unlucky", gate)
    gate.open()
    assert worker.get(result)["retries"] == 0


def test_a_lost_lock_fails_the_task_by_default_and_after_max_conflicts(worker):
    plain, gate = worker.begin("plain", "lost")
    lose(worker, "lost", gate)
    assert isinstance(worker.wait_failed(plain), LockLost)
    gate = worker.gate()
    twice = worker.send("policy.unlucky_twice", "twice", str(gate))
    for _ in range(2):
        lose(worker, "twice", gate)
    assert isinstance(worker.wait_failed(twice), LockLost)


@pytest.mark.parametrize(("consent", "runs"), [("late", 2), ("refuses", 1), ("spent", 1), ("bounded", 1)])
def test_a_task_with_acks_late_may_run_twice(worker, tmp_path, consent, runs):
    """Unless its lock says otherwise."""
    key, gate, journal = f"consent-{consent}", worker.gate(), tmp_path / "journal"
    result = worker.send(f"policy.{consent}", key, "linger", str(gate), str(journal))
    lose(worker, key, gate)
    if runs == 2:
        gate.wait_at_work()
        gate.open()
    assert outcome(result) == ("done" if runs == 2 else "LockLost")
    assert len(lines(journal)) == runs


def test_a_task_that_loses_its_lock_before_its_work_is_sent_again(worker):
    """It has the outer of two locks, and waits for the inner one."""
    with worker.zoo.hold_elsewhere("before/b"):
        result = worker.send("several.patient.two", "before")
        worker.zoo.wait_contenders("before/b", 2)
        worker.zoo.delete("before/a")
        eventually(lambda: result.state == "RETRY", 20)
    assert worker.get(result) == "done"


def test_a_task_is_not_sent_again_for_its_inner_lock_after_work_under_the_outer_one(worker, tmp_path):
    journal = tmp_path / "journal"
    with worker.zoo.hold_elsewhere("charging/b"):
        result = worker.send("several.charging", "charging", str(journal))
        worker.zoo.wait_contenders("charging/b", 2)
    assert worker.get(result) == "done"
    assert len(lines(journal)) == 1


def test_a_task_longer_than_max_hold_loses_its_lock(worker):
    result = worker.send("policy.overlong", "overlong", str(worker.gate()))
    error = worker.wait_failed(result)
    assert isinstance(error, LockLost)
    assert "held for longer than max_hold, 0.5 s" in str(error)
    assert worker.log.read_text().count(f"policy.overlong[{result.id}] retry") == 2
    worker.zoo.wait_contenders("overlong", 0, timeout=2)


def lines(journal):
    return journal.read_text().splitlines() if journal.exists() else []


@pytest.mark.parametrize("policy", POLICIES)
def test_a_copy_ends_when_the_other_run_has_done_the_work(worker, policy):
    """It waits, or is sent again, whatever its policy is, until it has the lock: the other run may have died."""
    name, key = f"policy.{policy}.late", f"copy-{policy}"
    journal, gate = worker.home / f"{key}.journal", worker.gate()
    call = (name, key, "linger", str(gate), str(journal))
    result = worker.send(*call)
    gate.wait_at_work()
    log = worker.log.stat().st_size
    worker.send(*call, task_id=result.id, headers={COPY_HEADER: time.time()})
    if policy == "wait":
        worker.zoo.wait_contenders(key, 2)
    else:
        eventually(lambda: worker.log.read_text()[log:].count(f"{name}[{result.id}] retry") > 1, 20)
    gate.open()
    eventually(lambda: f"{name}[{result.id}] ignored" in worker.log.read_text(), 20, "the copy did not end")
    assert worker.get(result) == "done"
    assert len(lines(journal)) == 1


@pytest.mark.parametrize("policy", ["skip", "raise"])
def test_a_retry_before_the_release_is_not_skipped(worker, policy):
    """A task that retries at once, under its lock, may find its own znode. That is not a conflict."""
    sent = worker.send(f"policy.itself.{policy}", f"itself-{policy}")
    # Not by its result: Celery may store the RETRY of the first run after the success of the second.
    eventually(lambda: f"policy.itself.{policy}[{sent.id}] succeeded" in worker.log.read_text(), 20)


def test_a_task_that_calls_its_own_function_is_not_sent_again(worker):
    with worker.zoo.hold_elsewhere("inner"):
        assert worker.run("policy.own_run", "own-run", "inner") == "refused"
    assert worker.run("policy.own_run", "own-run", "inner") == "went through"


def test_a_task_sent_under_a_lock_that_it_needs_runs_when_it_is_free(worker):
    gate = worker.gate()
    caller = worker.send("policy.sends", "sender", str(gate))
    gate.wait_at_work()
    worker.zoo.wait_contenders("sender", 2)
    gate.open()
    assert worker.get(worker.app.AsyncResult(worker.get(caller))) == "done"
