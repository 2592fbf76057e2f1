"""
The order of locks in a whole test run.

Each process of the run, also one that a test starts, adds what it sees to one file. The process that began the run
reads it at the end.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from django_zklock.core.locks import order


class OrderOfRun:
    """The file of one run. Its path is in the environment, for all processes that are started."""

    def __init__(self) -> None:
        self._is_temporary = order.FILE not in os.environ
        if self._is_temporary:
            handle, os.environ[order.FILE] = tempfile.mkstemp(prefix="zklock-order-")
            os.close(handle)
        else:
            open(os.environ[order.FILE], "w").close()  # it may be that of an earlier run

    def inversions(self) -> list[str]:
        """Return what is wrong with the order of the locks in this run, in sentences."""
        with open(os.environ[order.FILE], encoding="utf-8") as file:
            return [order.advice(circle) for circle in order.read(file)[1]]

    def fails_run(self) -> bool:
        """Return whether an inversion fails the run: the project has `STRICT`."""
        from django_zklock import conf  # noqa: PLC0415 - not imported in runs without an inversion

        settings = conf.setting("ZKLOCK") if conf.are_settings_known() else None
        return isinstance(settings, Mapping) and settings.get("STRICT") is True

    def stop(self) -> None:
        """Remove the file, unless the user has named one."""
        if self._is_temporary:
            os.unlink(os.environ.pop(order.FILE))


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
