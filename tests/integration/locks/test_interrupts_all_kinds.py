"""Exceptions that strike from outside leave no contender, sign or listed hold of any kind, wherever they strike."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from kazoo.exceptions import NoNodeError
from support.strike import assert_none_listed, functions_of, long_strides, sweep, work_hand_over, work_linger
from support.zoo import Zoo, eventually

from django_zklock import ReadWriteLock, zk_lock
from django_zklock.execution import owner, waiters
from django_zklock.locks import acquisition, base, guard, held, hold, lingering, local_waiters, lock
from django_zklock.locks.held import held_locks
from django_zklock.locks.protocol.contender import Contender
from django_zklock.queue.operator_hold import is_operator

pytestmark = [
    pytest.mark.zookeeper,
    pytest.mark.filterwarnings("ignore:.*was dropped:ResourceWarning"),
    pytest.mark.timeout(400),  # hundreds of lines, each struck once in a traced interpreter
]

FUNCTIONS = [
    *functions_of(lock, base, hold, held, guard, acquisition, waiters, owner, lingering, local_waiters),
    Contender.share,
    Contender.abandon,
]


def work_read_in_write(key: str) -> None:
    rw = ReadWriteLock(key)
    with rw.write(), rw.read():
        pass


def work_write_released_first(key: str) -> None:
    rw = ReadWriteLock(key)
    reader, acquired = rw.read(), False
    try:
        with rw.write():
            assert reader.acquire()
            acquired = True
    finally:
        if acquired:
            reader.release()


def work_downgrade(key: str) -> None:
    rw = ReadWriteLock(key)
    with rw.write() as held:
        held.downgrade()
        with rw.read():
            pass


def work_permit(key: str) -> None:
    with zk_lock(key, limit=2), zk_lock(key, limit=2):
        pass


def work_at_least(key: str) -> None:
    with zk_lock(key, min_hold=0.3), zk_lock(key):
        pass


def is_left(zoo: Zoo, key: str) -> bool:
    """Tell whether anything of this session is left of a key, or the other way round."""
    try:
        names = zoo.client.get_children(f"{zoo.base}/{key}")
    except NoNodeError:
        return False
    return any(name.startswith("!") or not is_operator(name) for name in names)


@long_strides
@pytest.mark.parametrize(
    "work",
    [
        work_read_in_write,
        work_write_released_first,
        work_downgrade,
        work_permit,
        work_at_least,
        work_linger,
        work_hand_over,
    ],
)
def test_an_exception_at_any_line_leaves_nothing_of_any_kind(
    zoo: Zoo, work: Callable[[str], None], stride: int
) -> None:
    """The node of a minimum hold ends by itself, whatever line is struck."""

    def check(key: str) -> None:
        eventually(lambda: not is_left(zoo, key), 2, "something is left")
        assert_none_listed()

    sweep(FUNCTIONS, work, check, stride, clean=held_locks._kept.clear)
