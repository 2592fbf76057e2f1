"""The exit statuses of `manage.py zklock`, and which error ends in which."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError

from django_zklock.exceptions import LockChangedHands, LockNotAcquired, ZkLockError, ZooKeeperUnavailable
from django_zklock.management.printing import clean


class Exit(IntEnum):
    """How a sub-command ends; `run` ends as its command does, if that was begun and not stopped."""

    DONE = 0
    FAILED = 1  # refused, or the doctor has found something
    USAGE = 2  # argparse's
    FREE = 3  # nobody holds this lock, or waits for it
    CHANGED = 4  # it has changed hands since
    AWAY = 69  # ZooKeeper does not answer; EX_UNAVAILABLE of sysexits.h
    BUSY = 75  # the lock was not to be had; EX_TEMPFAIL: worth another try later
    LOST = 76  # the lock was lost, and the command stopped
    NOT_RUN = 126  # there is such a command, and it cannot be run; as in a shell
    NOT_FOUND = 127  # there is no such command; as in a shell


def failure(message: str, status: int = Exit.FAILED) -> CommandError:
    """Return the error that ends the command with this message, harmless to a terminal, and this status."""
    return CommandError(clean(message, 2000), returncode=int(status))


@contextmanager
def told(busy: int = Exit.BUSY) -> Iterator[None]:
    """Turn the errors of locks into a message and an exit status, instead of a traceback."""
    try:
        yield
    except ZooKeeperUnavailable as error:
        raise failure(str(error), Exit.AWAY) from error
    except LockNotAcquired as error:
        raise failure(str(error), busy) from error
    except LockChangedHands as error:
        raise failure(str(error), Exit.CHANGED) from error
    except (ZkLockError, ImproperlyConfigured) as error:
        raise failure(str(error)) from error
