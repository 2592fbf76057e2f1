"""
The order of locks in a whole test run.

Each process of the run, also one that a test starts, adds what it sees to one file. The process that began the run
reads it at the end.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Final

from django_zklock.core.locks import order
from django_zklock.core.log import Logger

logger = Logger("django_zklock.locks")

RUN: Final = "ZKLOCK_LOCK_ORDER_RUN"
"""The environment variable that tells a run inside another one, as of pytest's `pytester`, to use its own file."""


class OrderOfRun:
    """The file of one run. Its path is in the environment, for all processes that are started."""

    def __init__(self) -> None:
        self._around = {name: os.environ[name] for name in (order.FILE, RUN) if name in os.environ}
        self._is_temporary = RUN in self._around or order.FILE not in self._around
        if self._is_temporary:
            handle, self._path = tempfile.mkstemp(prefix="zklock-order-")
            os.close(handle)
        else:
            self._path = os.path.abspath(self._around[order.FILE])
            open(self._path, "w").close()  # it may be that of an earlier run
        os.environ.update({order.FILE: self._path, RUN: str(os.getpid())})

    def inversions(self) -> list[str]:
        """Return what is wrong with the order of the locks in this run, in sentences."""
        try:
            with open(self._path, encoding="utf-8") as file:
                return [order.advice(circle) for circle in order.read(file)[1]]
        except (OSError, ValueError) as error:  # a test has deleted it, or a process has written half a line
            logger.warning("the order of locks in this run is not known: %s", error)
            return []

    def fails_run(self) -> bool:
        """Return whether an inversion fails the run: the project has `STRICT`."""
        from django_zklock import conf  # noqa: PLC0415 - not imported in runs without an inversion

        settings = conf.setting("ZKLOCK") if conf.are_settings_known() else None
        return isinstance(settings, Mapping) and settings.get("STRICT") is True

    def stop(self) -> None:
        """Remove the file, unless the user has named one."""
        for name in (order.FILE, RUN):
            os.environ.pop(name, None)
        os.environ.update(self._around)
        if self._is_temporary:
            with suppress(OSError):  # a test has deleted it
                os.unlink(self._path)


@contextmanager
def meant() -> Iterator[None]:
    """Do not look at the order of locks inside this block, nor in processes that it starts."""
    path = os.environ.pop(order.FILE, None)
    order.is_meant = True
    try:
        yield
    finally:
        order.is_meant = False
        if path is not None:
            os.environ[order.FILE] = path
