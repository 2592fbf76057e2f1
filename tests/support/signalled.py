"""Django's signals about locks, as they were sent."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from django.dispatch import Signal

from django_zklock import signals


class Sent(list[tuple[str, dict[str, Any]]]):
    """Signals in their order: the name of each, and its arguments with the name of the thread."""

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self]


@contextlib.contextmanager
def received(signal: Signal, receiver: Callable[..., object]) -> Iterator[None]:
    signal.connect(receiver, weak=False)
    try:
        yield
    finally:
        signal.disconnect(receiver)


@contextlib.contextmanager
def signalled(*names: str) -> Iterator[Sent]:
    sent = Sent()

    def note(name: str, **kwargs: Any) -> None:
        sent.append((name, kwargs | {"thread": threading.current_thread().name}))

    with contextlib.ExitStack() as stack:
        for name in names:
            stack.enter_context(received(getattr(signals, name), partial(note, name)))
        yield sent
