"""Tasks that wait for each other's locks: a deadlock is shown, or one yields after its `DEADLOCK_TIMEOUT`."""

import contextlib
import threading

import pytest
from support.deadlock import rivals
from support.policytasks import POLICIES, VALUE
from support.worker import Worker, outcome
from support.zoo import Zoo, eventually

from django_zklock import inspection, operations
from django_zklock.dashboard.detail import read_details

FIRST, SECOND = "account-1", "account-2"


POOLS = ["prefork", *(pytest.param(pool, marks=pytest.mark.chaos) for pool in ("threads", "gevent"))]


@pytest.fixture(scope="module", params=POOLS)
def lasting(request, single, tmp_path_factory):
    """A worker whose deadlocks last until somebody breaks a lock."""
    env, home = {"SITE_ZKLOCK": '{"DEADLOCK_TIMEOUT": null}'}, tmp_path_factory.mktemp("worker")
    with Zoo(single.hosts, single) as zoo, Worker(zoo, home, pool=request.param, env=env) as worker:
        yield worker


@pytest.fixture
def worker(lasting):
    with lasting.log_shown(), lasting.zoo.configured():
        yield lasting
        lasting.zoo.assert_empty()


def waits():
    return inspection.snapshot(max_age=0, reply_timeout=30)


def break_holder(key):
    lock = inspection.look_at(key, reply_timeout=30)
    holder = lock.holders[0]
    operations.break_lock(key, guid=holder.guid, token=holder.token, reason="a deadlock", by="anna")


def test_two_tasks_that_wait_for_each_other_are_shown_as_a_deadlock(worker):
    """One that waits is a chain. The main process of both has one session, which makes no deadlock."""
    gates = worker.gate(), worker.gate()
    results = [
        worker.send("waiting.inner", FIRST, str(gates[0]), SECOND),
        worker.send("waiting.inner", SECOND, str(gates[1]), FIRST),
    ]
    for gate in gates:
        gate.wait_at_work()
    gates[0].open()
    (wait,) = eventually(lambda: waits().waits)
    assert (wait.holds, wait.waits_for) == (FIRST, SECOND)
    assert results[0].id in wait.who
    assert not waits().cycles

    gates[1].open()
    ((first, second),) = eventually(lambda: waits().cycles)
    assert [(first.holds, first.waits_for), (second.holds, second.waits_for)] == [(FIRST, SECOND), (SECOND, FIRST)]
    (shown,) = read_details([FIRST], reply_timeout=30)
    assert shown.info.deadlocked

    break_holder(SECOND)
    assert worker.get(results[0]) > 0
    eventually(results[1].ready, 20)


SENT_AGAIN = dict.fromkeys(("retry", "wait"), "done")
IN_BODY = {
    **dict.fromkeys(("wait", "retry", "skip", "raise", "refuses", "spent", "plain"), "LockDeadlock"),
    **dict.fromkeys(("on_lost", "late", "offline"), "done"),
}
"""The outcomes of tasks whose body gives way: only one that says that it may run twice begins again."""


@pytest.fixture
def pool_worker(request, pool):
    worker = request.getfixturevalue(f"{pool}_worker")
    with worker.log_shown(), worker.zoo.configured():
        yield worker
        worker.zoo.assert_empty()


@pytest.mark.parametrize("pool", ["prefork", "threads", pytest.param("gevent", marks=pytest.mark.chaos)])
def test_of_two_tasks_that_may_run_twice_one_is_sent_again(pool_worker, tmp_path):
    worker, journal, log = pool_worker, tmp_path / "journal", pool_worker.log.stat().st_size
    gates = worker.gate(), worker.gate()
    sent = [
        worker.send("nested.late", FIRST, SECOND, str(gates[0]), str(journal)),
        worker.send("nested.late", SECOND, FIRST, str(gates[1]), str(journal)),
    ]
    for gate in gates:
        gate.wait_at_work()
    for gate in gates:
        gate.open()
    assert [outcome(result) for result in sent] == ["done", "done"]
    runs = [line.split()[0] for line in journal.read_text().splitlines()]
    assert len(runs) == 3
    said = worker.log.read_text()[log:]
    assert said.count("a deadlock has ended") == said.count("] retry: ") == 1


class Nested:
    """A task of a policy that has its lock, and waits for another one when it is told to."""

    def __init__(self, worker, policy, folder):
        self.policy = policy
        self.gate = worker.gate()
        self._journal = folder / f"journal-{policy}"
        keys = f"{policy}-a", f"{policy}-b"
        self.result = worker.send(f"nested.{policy}", *keys, str(self.gate), str(self._journal))

    def runs(self):
        return len(self._journal.read_text().splitlines())


@pytest.mark.parametrize(
    ("pool", "policies"),
    [
        ("threads", list(IN_BODY)),
        ("prefork", ["late", "retry"]),
        pytest.param("gevent", list(IN_BODY), marks=pytest.mark.chaos),
        pytest.param("solo", ["late"], marks=pytest.mark.chaos),
    ],
)
def test_a_task_that_gives_way_in_its_body_ends_by_its_policy(pool_worker, tmp_path, policies):
    tasks = [Nested(pool_worker, policy, tmp_path) for policy in policies]
    for task in tasks:
        task.gate.wait_at_work()
    with rivals(pool_worker.zoo, {f"{policy}-b": f"{policy}-a" for policy in policies}):
        for task in tasks:
            task.gate.open()
        for task in tasks:
            expected = IN_BODY[task.policy]
            assert outcome(task.result) == expected, task.policy
            assert task.runs() == (2 if expected == "done" else 1), task.policy


@pytest.mark.parametrize("pool", ["prefork"])
@pytest.mark.parametrize("error", ["LockDeadlock", "LockLost"])
def test_no_work_is_repeated_after_its_commit(pool_worker, tmp_path, error):
    journal = tmp_path / "journal"
    assert outcome(pool_worker.send("nested.committed", "committed", error, str(journal))) == error
    assert len(journal.read_text().splitlines()) == 1


@pytest.mark.parametrize("pool", ["prefork"])
def test_a_task_that_gives_way_before_its_work_ends_by_its_policy(pool_worker):
    worker, zoo, log = pool_worker, pool_worker.zoo, pool_worker.log.stat().st_size
    policies = [*POLICIES, "two"]
    with contextlib.ExitStack() as others:
        with contextlib.ExitStack() as before:
            for policy in policies:
                before.enter_context(zoo.hold_elsewhere(f"{policy}/a"))
            sent = {policy: worker.send(f"several.patient.{policy}", policy) for policy in policies}
            for policy in policies:
                zoo.wait_contenders(f"{policy}/a", 2)
            pairs = {f"{policy}/b": f"{policy}/a" for policy in policies}
            others.enter_context(rivals(zoo, pairs, queue=3, keep=(end := threading.Event())))
        final = {"raise": "LockDeadlock", "skip": "TaskRevokedError", "value": VALUE}
        assert {policy: outcome(sent[policy]) for policy in final} == final
        end.set()  # a task that finds its lock free by then would not be skipped
        assert {policy: outcome(sent[policy]) for policy in policies if policy not in final} == {
            **SENT_AGAIN,
            "two": "done",
        }
        assert worker.log.read_text()[log:].count("a deadlock has ended") == len(policies)
