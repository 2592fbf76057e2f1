"""The exit codes of `manage.py zklock`, and the errors that lead to them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from typing import Final

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError

from django_zklock.core.queue.escaping import printable
from django_zklock.exceptions import LockChangedHands, LockNotAcquired, ZkLockError, ZooKeeperUnavailable


class ExitCode(IntEnum):
    """How a sub-command ends. `run` ends with its command's status, if the command was started and not stopped."""

    OK = 0
    FAILED = 1  # refused, or a check of `doctor` has failed
    USAGE = 2  # argparse's
    NO_HOLDER = 3  # the lock has no holder and no waiters
    CHANGED = 4  # the lock has changed hands
    INCIDENT = 20  # something needs attention, whatever the cause
    PARTIAL = 31  # nothing was found, and not everything was looked at
    UNAVAILABLE = 69  # ZooKeeper does not answer; EX_UNAVAILABLE of sysexits.h
    BUSY = 75  # the lock was not acquired in time; EX_TEMPFAIL, worth another try later
    LOST = 76  # the lock was lost, and the command was stopped
    NOT_RUN = 126  # the command exists and cannot be run; as in a shell
    NOT_FOUND = 127  # the command does not exist; as in a shell


EXIT_CODES: Final = """\
exit codes:
  0 done; 1 refused, or an error; 2 wrong usage; 3 no holder; 4 the lock has changed hands;
  20 something needs attention; 31 not all was looked at; 69 ZooKeeper does not answer;
  75 the lock was not acquired in time; 76 the lock was lost; 126, 127 the command cannot be run
"""


def failure(message: str, status: int = ExitCode.FAILED) -> CommandError:
    """Return the error that ends the sub-command with this message, escaped for a terminal, and this exit code."""
    return CommandError(printable(message, 2000), returncode=int(status))


@contextmanager
def errors_as_exit_codes(busy: int = ExitCode.BUSY) -> Iterator[None]:
    """Turn the errors of locks, and refused values, into a message and an exit code instead of a traceback."""
    codes: dict[type[Exception], int] = {
        ZooKeeperUnavailable: ExitCode.UNAVAILABLE,
        LockNotAcquired: busy,
        LockChangedHands: ExitCode.CHANGED,
        ZkLockError: ExitCode.FAILED,
        ImproperlyConfigured: ExitCode.FAILED,
        ValueError: ExitCode.USAGE,
    }
    try:
        yield
    except tuple(codes) as error:
        raise failure(str(error), next(code for kind, code in codes.items() if isinstance(error, kind))) from error
