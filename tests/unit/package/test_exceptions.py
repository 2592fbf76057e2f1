"""The errors: one root, default messages, and builtins as second bases."""

from __future__ import annotations

import inspect

import pytest

from django_zklock import exceptions
from django_zklock.exceptions import ZkLockError

ERRORS = [
    value
    for value in vars(exceptions).values()
    if inspect.isclass(value) and value.__module__ == exceptions.__name__ and issubclass(value, BaseException)
]
IN_THE_TREE = [error for error in ERRORS if issubclass(error, ZkLockError)]


@pytest.mark.parametrize("error", IN_THE_TREE)
def test_an_error_says_what_happened_and_to_which_lock(error: type[ZkLockError]) -> None:
    raised, bare = error("gone", lock="inventory/1"), error()
    assert (str(raised), raised.lock) == ("gone", "inventory/1")
    assert (str(bare), bare.lock) == ((inspect.getdoc(error) or "").splitlines()[0], None)


def test_errors_have_one_root_and_one_base_of_all_that_were_not_acquired() -> None:
    """Every error has the one root, but for the interrupt, which no `except Exception` may swallow."""
    assert [error for error in ERRORS if not issubclass(error, ZkLockError)] == [exceptions.LockLostInterrupt]
    assert not issubclass(exceptions.LockLostInterrupt, Exception)
    assert issubclass(exceptions.LockBusy, exceptions.LockNotAcquired)
    assert issubclass(exceptions.LockTimeout, exceptions.LockNotAcquired)
    assert issubclass(exceptions.LockDeadlock, exceptions.LockNotAcquired)
