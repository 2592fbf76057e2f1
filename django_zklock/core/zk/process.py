"""
The one session of this process, built on first use and shared by all its threads, greenlets and event loops.

A forked child drops the inherited session without touching the parent's socket, and builds its own on first use.
A process that was started with `spawn` inherits nothing. When the interpreter exits, the session is closed, so that
its locks are released at once.

The pytest plugin loads this module into every run of pytest, so it imports little more than the standard library. The
plugin forbids contact with ZooKeeper; `LockTester` allows it in its block.
"""

from __future__ import annotations

import _thread
import atexit
import os
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from django_zklock.core import fork, log

if TYPE_CHECKING:
    from django_zklock.core.zk.options import FormerSession, SessionOptions
    from django_zklock.core.zk.session import Session

CLOSE_TIMEOUT = 2.0  # seconds that the exit of the process may wait for the session to close
LOG_TIMEOUT = 1.0  # seconds that it may wait for slow log handlers
START_TIMEOUT = 30.0  # seconds for the imports of the first lock, on a busy machine
FORK_WAIT = 2.0  # seconds that a fork waits for these imports; it may come out of an import that they wait for

logger = log.Logger("django_zklock.zk", always=True)

_starting = threading.Lock()  # held by threads of `_start` and during forks: no signal handler may take it twice
_forking: list[bool] = []  # of each thread that forks now, whether it holds `_starting`
_sessions: dict[int, Session] = {}  # at most one, by the id of its process; changed by single steps
at_end: list[Callable[[], object]] = []
"""Functions that `end` calls when the session is closed. They are added while the program starts."""
_forbidden = ""  # the error message while contact is forbidden; written by the plugin, read by any thread
allowed = 0  # how many `LockTester`s and marked tests run; written by the thread that runs the tests


def _refuse() -> SessionOptions:
    raise RuntimeError("The options of the session are unknown: call configure() first.")


_factory: Callable[[], SessionOptions] = _refuse


def configure(factory: Callable[[], SessionOptions], *, is_default: bool = False) -> None:
    """Set the function that returns a session's options; a default does not replace one that was set before."""
    global _factory
    if not is_default or _factory is _refuse:
        _factory = factory


def resume(former: FormerSession | None) -> None:
    """Let the next session of this process go on with this one, if that is still alive."""
    new_options = _factory
    configure(lambda: replace(new_options(), former=former))


def current() -> Session:
    """
    Return the session of this process, and start it if there is none. Does not wait for a connection.

    Raises `RuntimeError` in a test that may not contact ZooKeeper.
    """
    if _forbidden and not allowed:
        raise RuntimeError(_forbidden)
    return _sessions.get(os.getpid()) or _start()


def peek() -> Session | None:
    """Return the session of this process, or None if none was started."""
    return _sessions.get(os.getpid())


def forbid(message: str) -> None:
    """Make `current()` raise `RuntimeError(message)`, except between `allow` and `disallow`. "" ends that."""
    global _forbidden
    _forbidden = message


def allow() -> None:
    """Allow contact until `disallow` has been called as often as this."""
    global allowed
    allowed += 1


def disallow() -> None:
    """Take back one call of `allow`."""
    global allowed
    allowed -= 1


def _start() -> Session:
    """
    Start the session in a thread that no signal handler interrupts, and wait for it.

    In the main thread, the exception of a handler could strike the imports, or `Thread.start`, which breaks.
    """
    from django_zklock.core.execution.waiters import ThreadWaiter  # noqa: PLC0415 - see above

    fork.notice()
    waiter: ThreadWaiter[Session | BaseException] = ThreadWaiter()
    try:
        _thread.start_new_thread(_start_in_thread, (_factory, waiter.set))
    except (RuntimeError, MemoryError) as error:
        raise _no_start(error) from error
    started = waiter.wait(START_TIMEOUT)
    if isinstance(started, BaseException):
        raise started
    if started is None:
        raise _no_start(f"it did not begin within {START_TIMEOUT:g} s")
    return started


def _no_start(cause: object) -> Exception:
    """Return the error for a lock that found no room for a thread or a file. The next lock tries again."""
    from django_zklock.core.errors import ZooKeeperUnavailable  # noqa: PLC0415 - see above

    why = getattr(cause, "strerror", None) or cause or "no memory"
    return ZooKeeperUnavailable(f"This process cannot connect to ZooKeeper: {str(why).lower()}.")


def _start_in_thread(
    factory: Callable[[], SessionOptions], on_started: Callable[[Session | BaseException], object]
) -> None:
    try:
        with _starting:
            session = _sessions.get(os.getpid())
            if session is None:
                session = _new_session(factory())
                _sessions[session.pid] = session  # in a child that a gevent program has forked meanwhile, the parent's
        on_started(session)
    except BaseException as error:  # noqa: BLE001 - the caller raises it
        on_started(error)


def _new_session(options: SessionOptions) -> Session:
    try:
        from django_zklock.core.execution.abort import shielded  # noqa: PLC0415 - see above
        from django_zklock.core.zk.session import Session  # noqa: PLC0415 - Django's start does not import kazoo

        shielded(end)  # else it would be struck by the abort of a block that is still open
        session = Session(options)
        session.start()
    except (OSError, RuntimeError, MemoryError, ImportError) as error:  # a library in C cannot be opened, perhaps
        raise _no_start(error) from error
    return session


def reset(timeout: float = CLOSE_TIMEOUT, *, at_exit: bool = False) -> None:
    """Close the session and wait for that at most `timeout` seconds. The next use builds a new one."""
    session = _sessions.pop(os.getpid(), None)
    if session is not None:
        session.close(timeout, at_exit=at_exit)


def end(*, at_exit: bool = False) -> None:
    """Close the session of a process that ends, call the functions in `at_end`, and handle the last log records."""
    fork.notice()
    reset(at_exit=at_exit)
    for call in at_end:
        call()
    log.flush(LOG_TIMEOUT)


def keep_open() -> None:
    """Leave the session open when this process ends. Its locks are free when ZooKeeper ends it."""
    _sessions.clear()


def _before_fork() -> None:
    # Otherwise the child would inherit half an import, and wait for its end for ever.
    _forking.append(_starting.acquire(timeout=FORK_WAIT))


def _after_fork() -> None:
    if _forking.pop():
        _starting.release()


def _forget_in_child() -> None:
    global _starting
    _starting = threading.Lock()  # the inherited one may be held by a thread that does not exist in the child
    _forking.clear()
    for session in list(_sessions.values()):
        session.forget()
    _sessions.clear()
    if fork.has_dead_threads:
        logger.warning(
            "this process was forked without Python's hooks, from one with threads: in its threads, no work is aborted "
            "when its lock is lost; with uWSGI, set lazy-apps = true, or py-call-uwsgi-fork-hooks = true"
        )


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork)
fork.in_child(_forget_in_child)
atexit.register(end, at_exit=True)
atexit.register(  # runs first: nothing would close a session that a later exit handler starts
    forbid,
    "The process ends and closes its session. Register an atexit function that acquires a lock after the import of "
    "django_zklock, so that it runs earlier.",
)
