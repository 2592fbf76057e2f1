"""
Modules that tell others something after a block, such as Celery: they are connected when the process has them.

Django imports this module at its start, so it imports little.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Final

from django_zklock.core import log

logger = log.Logger("django_zklock.locks")

awaited: Final[dict[str, Callable[[], object]]] = {}
"""The calls to make, by the module that the process has not imported yet."""


def connect_when_imported(module: str, connect: Callable[[], object]) -> None:
    """Call `connect` at the end of a block, as soon as the process has imported a module that may tell others."""
    awaited[module] = connect


def connect() -> None:
    """Make the calls whose modules were imported; again at the next block if one fails."""
    for module, connect in list(awaited.items()):
        if module in sys.modules:
            try:
                connect()
            except Exception:
                logger.exception("what %s tells does not wait for releases yet", module)
            else:
                awaited.pop(module, None)
