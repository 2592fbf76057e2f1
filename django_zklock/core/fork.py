"""
A forked child of this process first forgets what belongs to its parent.

Python calls its hooks after `os.fork()`. A server that forks in C may not let it: uWSGI does so only with its option
`py-call-uwsgi-fork-hooks`. In such a child, the first public call that begins or finds something notices the fork.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager

_calls: list[Callable[[], object]] = []
_pid = os.getpid()
_noticing: dict[int, AbstractContextManager[object]] = {}  # by the id of the process that notices the fork
has_dead_threads = False
"""
Whether Python still lists threads of the parent here, because its hooks did not run.

Their frames are in memory that new threads use. To read the frames of all threads would crash the process.
"""


def in_child(call: Callable[[], object]) -> None:
    """Make an idempotent call in each forked child, after those that were registered before."""
    _calls.append(call)


def notice() -> None:
    """Make the calls now if this process is a forked child that has not made them. It is cheap."""
    global has_dead_threads
    if os.getpid() == _pid:
        return
    with _noticing.setdefault(os.getpid(), threading.RLock()):
        if os.getpid() != _pid:
            has_dead_threads = _has_dead_threads()
            _begin_child()


def _has_dead_threads() -> bool:
    own = {threading.main_thread(), threading.current_thread()}
    # Not `threading.enumerate()`: a thread of the parent may hold its lock for ever.
    others = [thread for thread in threading._active.values() if thread not in own]  # type: ignore[attr-defined]
    return not all(os.path.exists(f"/proc/self/task/{thread.native_id}") for thread in others)


def _begin_child() -> None:
    global _pid
    for call in _calls:
        call()
    _pid = os.getpid()  # last: if the exception of a signal handler strikes, the next call begins again


def _forked() -> None:
    global has_dead_threads
    has_dead_threads = False
    _begin_child()


os.register_at_fork(after_in_child=_forked)
