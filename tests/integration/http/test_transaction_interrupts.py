"""An exception of a signal handler, at any point, leaves neither a transaction open nor a lock held."""

import contextlib
import time
from functools import partial

import pytest
from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.transaction import Atomic, TransactionManagementError
from support.strike import functions_of, long_strides, sweep
from support.work import guards, run_in_thread

from django_zklock import zk_locks
from django_zklock.core.locks import acquisition, held
from django_zklock.core.locks.held import held_locks
from django_zklock.exceptions import LockLost
from django_zklock.locks import base, commit_hooks, lock, multi, transactions
from django_zklock.locks.hold import held_of
from django_zklock.locks.lock import Lock
from django_zklock.locks.release import Releasable

pytestmark = pytest.mark.filterwarnings("ignore:.*was dropped:ResourceWarning")


OURS = functions_of(transactions, commit_hooks, lock, base, Releasable, acquisition, held)
DJANGOS = [
    Atomic.__enter__,
    Atomic.__exit__,
    BaseDatabaseWrapper.set_autocommit,
    *(getattr(BaseDatabaseWrapper, name) for name in ("_commit", "_rollback")),
]


def begun_inside_twice(ledger, mutex):
    with mutex:
        ledger.write("x")
        with mutex:
            ledger.write("x")


def begun_inside_several(ledger, mutex):
    with zk_locks(mutex, f"{mutex.key}/more", atomic="ledger"):
        ledger.write("x")


def failing(ledger, mutex):
    with contextlib.suppress(ZeroDivisionError), mutex:
        ledger.write("x")
        raise ZeroDivisionError


def several_kept(ledger, mutex):
    with transaction.atomic(using="ledger"):
        with mutex:
            ledger.write("x")
        with mutex:
            pass
        with Lock("another", release_on="commit"):
            pass


def kept_and_rolled_back(ledger, mutex):
    with contextlib.suppress(ZeroDivisionError), transaction.atomic(using="ledger"):
        with mutex:
            ledger.write("x")
        raise ZeroDivisionError


def kept_and_closed(ledger, mutex):
    with transaction.atomic(using="ledger"):
        with mutex:
            ledger.write("x")
        ledger.connection.close()


WORK = {
    begun_inside_twice: ({"atomic": ["ledger", "audit"]}, [*OURS, *DJANGOS]),
    begun_inside_several: ({}, [*OURS, *DJANGOS, *functions_of(multi)]),
    failing: ({"atomic": "ledger"}, [*OURS, *DJANGOS]),
    # Django's own `atomic` cannot be struck without harm, so its functions are spared where it is the outer one.
    several_kept: ({"release_on": "commit"}, OURS),
    kept_and_rolled_back: ({"release_on": "commit"}, OURS),
    kept_and_closed: ({"release_on": "commit"}, OURS),
}


@pytest.mark.timeout(240)  # hundreds of lines, each struck once in a traced interpreter
@long_strides
@pytest.mark.parametrize(
    "work",
    [
        *(begun_inside_several, failing, several_kept, kept_and_rolled_back),
        *(pytest.param(work, marks=pytest.mark.chaos) for work in (begun_inside_twice, kept_and_closed)),
    ],
)
def test_an_exception_at_any_line_leaves_neither_lock_nor_transaction(zoo, ledger, audit, work, stride):
    options, functions = WORK[work]

    def check(key):
        ledger.assert_idle()
        audit.assert_idle()
        zoo.assert_empty()
        assert not held_locks.all()
        assert not guards()
        assert work is not failing or not ledger.seen(), "half its work was committed"
        with Lock(key, timeout=20, atomic="ledger"):
            pass

    def clean():
        connections["ledger"].in_atomic_block = False
        connections["ledger"].close()

    make = partial(Lock, **options)
    sweep(functions, lambda mutex: work(ledger, mutex), check, stride, make=make, clean=clean)


@pytest.mark.parametrize("inside", [False, True], ids=["own lock", "outer lock"])
@pytest.mark.parametrize("main", [False, True], ids=["thread", "main thread"])
def test_no_abort_interrupts_a_commit(zoo, ledger, inside, main):
    done = []

    def during_commit():
        grant = held_of(holds[0]).grant
        grant.session.post(grant.lose, "taken away")
        assert holds[0].wait_lost(20)
        end = time.monotonic() + 0.05
        while time.monotonic() < end:  # an abort would come at one of these bytecodes
            pass
        done.append("commit")

    def work():
        with contextlib.suppress(LockLost), contextlib.ExitStack() as stack:
            if inside:
                holds.append(stack.enter_context(Lock("outer")))
            with ledger.ends(during_commit), Lock("inner", atomic="ledger") as own:
                holds.append(own)
                ledger.write("x")
        if not main:
            connections["ledger"].close()

    holds = []
    work() if main else run_in_thread(work)
    assert done == ["commit"]
    assert ledger.seen() == ["x"]


@pytest.mark.parametrize("end", ["closed", "finished"])
def test_a_generator_that_ends_in_another_thread_commits_nothing(zoo, ledger, end):
    """Nothing of it is left in the connection, which the first thread goes on to use."""
    called = []

    def steps():
        with Lock("steps", atomic="ledger"):
            ledger.write("x")
            transaction.on_commit(lambda: called.append("x"), using="ledger")
            yield 1

    generator = steps()
    next(generator)
    if end == "closed":
        run_in_thread(generator.close)
    else:
        with pytest.raises(TransactionManagementError, match="another thread"):
            run_in_thread(lambda: next(generator, None))
    zoo.assert_empty()
    ledger.assert_idle()
    with transaction.atomic(using="ledger"):
        ledger.write("next")
    assert ledger.seen() == ["next"]
    assert not called
