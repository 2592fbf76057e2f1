"""The stack of a thread, an asyncio task or a greenlet, read from another thread while it runs or waits."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import linecache
import sys
import threading
from collections.abc import Iterator
from types import AsyncGeneratorType, CodeType, CoroutineType, FrameType, GeneratorType
from typing import Any, Final

from django_zklock.core.execution.owner import Owner
from django_zklock.core.queue.escaping import gettext_noop, printable

DIRECTORY: Final = "!stacks"
"""The directory of the answers. No segment of a key begins with `!`, which is percent-encoded there."""
MAX_FRAMES: Final = 60
MAX_ANSWER: Final = 16 * 1024  # bytes
NO_WORK: Final = gettext_noop("No work runs under the lock.")
OVER: Final = gettext_noop("It has ended without a release.")
OFF: Final = gettext_noop("STACKS is False in its settings.")
FORKED: Final = gettext_noop("It was forked without Python's hooks, so no stack can be read.")
CUT: Final = gettext_noop("... The outer functions are left out.")
"""Lines that are no code. Pages translate them."""

_AWAITED: Final = ("cr_await", "gi_yieldfrom", "ag_await")
_THREAD: Final = threading.Thread._bootstrap.__code__  # type: ignore[attr-defined]


def stack_of(owner: Owner | None) -> bytes:
    """
    Return what an owner runs now: its name, then the function, file, line and code of each frame, the innermost first.

    No values are read: neither arguments nor other variables. It reads source files, so it may take some time.
    """
    if owner is None or owner.kind == "message":
        return NO_WORK.encode()
    rows = [] if owner.is_over else _rows(owner)
    lines = [str(owner), *([] if rows else [OVER])]
    for code, line, module in rows:
        linecache.checkcache(code.co_filename)
        text = linecache.getline(code.co_filename, line, module).strip()
        lines.append(f"{getattr(code, 'co_qualname', code.co_name)} at {code.co_filename}:{line}: {text}")
    data = "\n".join(map(printable, lines)).encode()
    is_cut = len(rows) > MAX_FRAMES or len(data) > MAX_ANSWER
    return data[: MAX_ANSWER - len(CUT) - 1].rpartition(b"\n")[0] + b"\n" + CUT.encode() if is_cut else data


def read_answer(answer: bytes) -> list[str]:
    """Return the lines of an answer, which any program may have written."""
    return list(map(printable, answer[:MAX_ANSWER].decode(errors="replace").split("\n", MAX_FRAMES + 1)))


def _rows(owner: Owner) -> list[tuple[CodeType, int, dict[str, Any]]]:
    """Return the code, line and module of the frames of an owner, at once, as it goes on."""
    with no_collection():
        frames = itertools.islice(_frames(owner), MAX_FRAMES + 1)
        return [(frame.f_code, frame.f_lineno or 0, frame.f_globals) for frame in frames]


@contextlib.contextmanager
def no_collection() -> Iterator[None]:
    """
    Keep the garbage collector off while the frames of other threads are read. For Python 3.10 and 3.11.

    It would run in the middle of `sys._current_frames()` or of `f_back`, and finalizers would let other threads go on.
    They may end the very frame, which crashes the process, or be at their start or end, which hangs the process: a lock
    of the interpreter is held then. See https://github.com/python/cpython/issues/106883.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def _frames(owner: Owner) -> Iterator[FrameType]:
    """Yield the frames of an owner, the innermost first."""
    if owner.kind == "task":
        return _of_task(owner.subject)
    if owner.kind == "greenlet" and owner.subject.gr_frame is not None:
        return _outwards(owner.subject.gr_frame)
    thread = _thread_of(owner.subject) if owner.kind == "greenlet" else owner.subject
    return _outwards(sys._current_frames().get(thread.ident or 0))


def _outwards(frame: FrameType | None, last: FrameType | None = None) -> Iterator[FrameType]:
    """Yield a frame and its callers, up to the `last` one."""
    while frame is not None:
        yield frame
        frame = None if frame is last else frame.f_back


def _of_task(task: asyncio.Task[Any]) -> Iterator[FrameType]:
    """Yield the frames of a task. While it runs, they are a part of the stack of its thread."""
    awaiting = list(itertools.islice(_awaiting(task), 1000))
    for innermost in sys._current_frames().values():
        if awaiting and awaiting[0] in _outwards(innermost):
            return _outwards(innermost, awaiting[0])
    return reversed(awaiting)


def _awaiting(awaited: Any) -> Iterator[FrameType]:
    """Yield the frames of what is suspended in a task, the outermost first. A task that it awaits is a part of it."""
    while awaited is not None:
        awaited = awaited.get_coro() if isinstance(awaited, asyncio.Task) else awaited
        name = next((name for name in _AWAITED if hasattr(awaited, name)), None)
        if name is not None:
            if (frame := getattr(awaited, f"{name[:2]}_frame", None)) is not None:
                yield frame
            awaited = getattr(awaited, name)
        else:  # an object in C, such as the step of an asynchronous generator
            kinds = (asyncio.Task, CoroutineType, GeneratorType, AsyncGeneratorType)
            awaited = next((inner for inner in gc.get_referents(awaited) if isinstance(inner, kinds)), None)


def _thread_of(greenlet: Any) -> threading.Thread:
    """Return the thread that runs a greenlet, by the first greenlet of that thread, which waits."""
    while greenlet.parent is not None:
        greenlet = greenlet.parent
    first = next((frame for frame in _outwards(greenlet.gr_frame) if frame.f_code is _THREAD), None)
    return threading.main_thread() if first is None else first.f_locals["self"]
