"""Django's signals about locks, as they were sent."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from django_zklock import signals


class Sent(list[tuple[str, dict[str, Any]]]):
    """Signals in their order: the name of each, and its arguments with the name of the thread."""

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self]


@contextlib.contextmanager
def signalled(*names: str) -> Iterator[Sent]:
    sent = Sent()
    receivers = {}
    for name in names:

        def receive(name: str = name, **kwargs: Any) -> None:
            sent.append((name, kwargs | {"thread": threading.current_thread().name}))

        receivers[name] = receive
        getattr(signals, name).connect(receive, weak=False)
    try:
        yield sent
    finally:
        for name, receive in receivers.items():
            getattr(signals, name).disconnect(receive)
