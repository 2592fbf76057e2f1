"""Django's signals about locks, as they were sent."""

import contextlib
import threading
from functools import partial
from typing import Any

from django_zklock import signals


class Sent(list[tuple[str, dict[str, Any]]]):
    """Signals in their order: the name of each, and its arguments with the name of the thread."""

    @property
    def names(self):
        return [name for name, _ in self]


@contextlib.contextmanager
def received(signal, receiver):
    signal.connect(receiver, weak=False)
    try:
        yield
    finally:
        signal.disconnect(receiver)


@contextlib.contextmanager
def signalled(*names):
    sent = Sent()

    def note(name, **kwargs):
        sent.append((name, kwargs | {"thread": threading.current_thread().name}))

    with contextlib.ExitStack() as stack:
        for name in names:
            stack.enter_context(received(getattr(signals, name), partial(note, name)))
        yield sent
