"""An exception that destroys the end of a block releases that block alone, and only such an exception does."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
from contextlib import ExitStack

import pytest
from django.core.exceptions import SynchronousOnlyOperation
from django.db.transaction import TransactionManagementError
from support.ledger import Ledger
from support.strike import LineStrike, Struck
from support.zoo import Zoo

from django_zklock import zk_lock
from django_zklock.locks.base import LockBase

pytestmark = pytest.mark.zookeeper


def test_what_acquire_took_inside_survives_the_end_of_the_block(zoo: Zoo) -> None:
    """The block gives back one count, as an end that nothing strikes does."""
    mutex = zk_lock("k")
    with contextlib.suppress(Struck), LineStrike([LockBase._leave], 0) as strike, mutex:
        mutex.acquire()
    assert strike.where
    assert mutex.owned()
    mutex.release()
    assert not mutex.owned()
    assert not zoo.children("k")


def test_an_end_that_is_dropped_late_releases_nothing_again(zoo: Zoo, caplog: pytest.LogCaptureFixture) -> None:
    """Its block has ended in another way, and the owner holds the same lock again."""
    mutex = zk_lock("k")
    with mutex:
        end = mutex.__exit__
        with ExitStack() as stack:
            stack.enter_context(mutex)
        with mutex:
            del end
        assert mutex.owned()
        assert len(zoo.children("k")) == 1
    assert not caplog.records


def test_a_block_that_does_not_begin_is_not_reported_as_destroyed(
    zoo: Zoo, ledger: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    """The transaction cannot begin: that error is all there is to say."""
    ledger.connection.ensure_connection()
    ledger.connection.set_autocommit(False)
    try:
        with pytest.raises(TransactionManagementError), zk_lock("k", atomic="ledger"):
            pass
    finally:
        ledger.connection.set_autocommit(True)
    assert not zoo.children("k")
    assert not caplog.records


def test_a_lock_does_not_keep_the_owners_that_it_refused(zoo: Zoo) -> None:
    """Neither a task whose `with` is refused, nor a thread that calls `__exit__` by hand, or only looks for it."""
    mutex = zk_lock("k")

    async def refused() -> None:
        with pytest.raises(SynchronousOnlyOperation), mutex:
            pass

    def by_hand() -> None:
        mutex.__enter__()
        mutex.__exit__(None, None, None)
        assert hasattr(mutex, "__exit__")

    asyncio.run(refused())
    thread = threading.Thread(target=by_hand)
    thread.start()
    thread.join()
    gc.collect()
    assert not mutex._expected
