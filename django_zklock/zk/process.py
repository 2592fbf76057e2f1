"""
Knows the one session of this process.

One of the two places with module state. It is built on first use, in whichever thread that happens, and shared by
all threads, greenlets and event loops of the process. A forked child drops what it inherited without touching the
parent's socket and builds its own on first use; where no fork handler runs (`spawn`), nothing is inherited. At
interpreter exit the session is closed, so that its locks are free at once.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from django.core.exceptions import ImproperlyConfigured

from django_zklock.zk import permission

if TYPE_CHECKING:
    from django_zklock.zk.client import Options
    from django_zklock.zk.session import Session

CLOSE_TIMEOUT = 2.0  # seconds that the end of the process may wait for an orderly close

_mutex = threading.Lock()
_session: Session | None = None  # guarded by _mutex for writing
_factory: Callable[[], Options] | None = None


def configure(factory: Callable[[], Options]) -> None:
    """Say where the options of a session come from; called by the app's `ready()`."""
    global _factory
    _factory = factory


def current() -> Session:
    """
    Return the session of this process, started if there was none; does not wait for a connection.

    Raises `RuntimeError` in a test that may not contact ZooKeeper (`permission`).
    """
    permission.check()
    session = _session
    if session is not None and session.pid == os.getpid():
        return session
    return _start()


def peek() -> Session | None:
    """Return the session of this process if there is one, without starting it."""
    session = _session
    return session if session is not None and session.pid == os.getpid() else None


def _start() -> Session:
    from django_zklock.zk.session import Session  # noqa: PLC0415 - Django's start does not import kazoo

    global _session
    with _mutex:
        if _session is None or _session.pid != os.getpid():
            if _factory is None:
                raise ImproperlyConfigured(
                    'Locks need "django_zklock" in INSTALLED_APPS, and django.setup() before the first one is taken.'
                )
            session = Session(_factory())
            try:
                session.start()
                _session = session
            except BaseException:
                session.close(0)  # struck half way, by a signal's handler: nobody would ever close it
                raise
        return _session


def reset(timeout: float = CLOSE_TIMEOUT, *, at_exit: bool = False) -> None:
    """Close the session, in an orderly way within `timeout` seconds; the next use builds a new one."""
    global _session
    with _mutex:
        session, _session = _session, None
    if session is not None:
        session.close(timeout, at_exit=at_exit)


def _forget_in_child() -> None:
    global _session, _mutex
    _mutex = threading.Lock()  # the inherited one may be held by a thread that does not exist here
    session, _session = _session, None
    if session is not None:
        session.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)
atexit.register(reset, at_exit=True)
