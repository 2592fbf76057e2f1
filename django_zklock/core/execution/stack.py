"""The stack of a thread, an asyncio task or a greenlet, taken from another thread while it runs or waits."""

from __future__ import annotations

import asyncio
import functools
import gc
import itertools
import operator
import os
import socket
import sys
import traceback
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from types import CodeType, CoroutineType, FrameType, GeneratorType
from typing import Any, Final, TypeAlias, TypeVar

from django_zklock.core import fork
from django_zklock.core.execution.owner import Owner
from django_zklock.core.queue.escaping import printable

MAX_FRAMES: Final = 60
"""How many functions a stack has at most: the innermost ones."""
MAX_TEXT: Final = 16 * 1024  # characters

_AWAITING: Final = {CoroutineType: ("cr_frame", "cr_await"), GeneratorType: ("gi_frame", "gi_yieldfrom")}
"""The attributes that have the frame, and what is awaited there."""
_CALL: Final = operator.methodcaller("__call__")
_SWITCHES: Final = (gc.disable, gc.enable)

_Result = TypeVar("_Result")
_Row: TypeAlias = tuple[str, int | None, str]  # the file, the line, and the name of the function
_ROW: Final = ("f_code.co_filename", "f_lineno", "f_code.co_name")  # of a frame


class Stack:
    """
    The functions that an owner runs at one moment. It has no values: neither arguments nor other variables.

    Its text is that of a traceback. It is made late, on the thread of the log, because it reads source files.
    """

    def __init__(self, owner: Owner | None) -> None:
        self.holder = Holder(owner)
        self._rows = _rows(owner)  # the innermost first

    def __str__(self) -> str:
        if not self._rows:
            return ""  # it has not begun, has ended, or is compiled code
        summary = traceback.StackSummary.from_list(
            [traceback.FrameSummary(*row, lookup_line=False) for row in reversed(self._rows)]
        )
        return "Stack (most recent call last):\n" + "".join(summary.format()).rstrip("\n")[-MAX_TEXT:]


class Holder:
    """
    The owner, its process and host, for a log message.

    Its text is made late, on the thread of the log, too: the name of a thread, a task or a greenlet may be a property
    of other people's.
    """

    def __init__(self, owner: Owner | None) -> None:
        self._owner = owner
        self._is_over = owner is not None and owner.is_over  # now, as the owner may end before the text is made
        self._text = ""

    def __str__(self) -> str:
        owner = self._owner
        if not self._text:
            self._text = f"{self._description(owner)} in process {os.getpid()} on {socket.gethostname()}"
            self._owner = None  # a handler may keep the record for long
        return self._text

    def _description(self, owner: Owner | None) -> str:
        if owner is None:
            return "no work"
        if owner.kind == "message":
            return "a task that has not begun"
        name = printable(str(owner))
        return f"{name}, which has ended without a release," if self._is_over else name


def _rows(owner: Owner | None) -> list[_Row]:
    """Return the rows of an owner, the innermost first."""
    if owner is None or owner.kind == "message" or owner.is_over:
        return []
    if owner.kind == "task" and asyncio.current_task(owner.subject.get_loop()) is not owner.subject:
        return _of_suspended(owner.subject)
    suspended = _read_rows(callers(_attribute(owner.subject, "gr_frame"))) if owner.kind == "greenlet" else []
    return suspended or _read_rows(frames_of(owner.thread))


def _of_suspended(task: asyncio.Task[Any]) -> list[_Row]:
    """Return the rows of the coroutines in a task that waits. Another task that it awaits is no part of it."""
    rows: deque[_Row] = deque(maxlen=MAX_FRAMES)
    awaited: Any = task.get_coro()
    while type(awaited) in _AWAITING:  # an object of another class may run its own code when it is asked
        frame, inner = _AWAITING[type(awaited)]
        rows.extendleft(_read_rows(filter(None, _attribute(awaited, frame))))
        awaited = getattr(awaited, inner)
    return list(rows)


def _attribute(value: object, name: str) -> Iterator[FrameType | None]:
    return map(getattr, [value], [name], [None])


def _read_rows(frames: Iterator[FrameType]) -> list[_Row]:
    return read(itertools.islice(frames, MAX_FRAMES), *_ROW)


# --- frames of other threads --------------------------------------------------------------------------------------


def read(frames: Iterator[FrameType], *attributes: str) -> list[Any]:
    """
    Return these attributes of each frame. `frames` is an iterator in C that creates the frames, such as `callers`.

    All is done in C, so no bytecode runs from the first frame to the last: no other thread goes on, no exception
    strikes, and nothing is forked. A frame that outlives its function would keep its variables, and this thread would
    destroy them.

    On Python 3.11 the garbage collector is off meanwhile. It would run in the middle of `_current_frames` or
    of `f_back`, and finalizers would let other threads go on. They may end the very frame, which crashes the process,
    or be at their start or end, which hangs it. See https://github.com/python/cpython/issues/106883.
    """
    return no_collection(functools.partial(list, map(operator.attrgetter(*attributes), frames)))


def no_collection(call: Callable[[], _Result]) -> _Result:
    """Return `call()`, a function of C, while the garbage collector of Python 3.11 is off; see `read`."""
    if sys.version_info >= (3, 12):
        return call()
    before: list[Callable[[], None]] = []
    calls: Any = (
        functools.partial(before.extend, map(_SWITCHES.__getitem__, map(_CALL, [gc.isenabled]))),
        gc.disable,
        call,
        functools.partial(list, map(_CALL, before)),
    )
    try:
        result: _Result = list(map(_CALL, calls))[2]
    except BaseException:
        list(map(_CALL, before))
        raise
    return result


def callers(innermost: Iterator[FrameType | None]) -> Iterator[FrameType]:
    """Return the one frame that `innermost` yields, unless that is None, and its callers; for `read`."""
    steps: Iterator[Any] = itertools.chain(innermost, itertools.repeat("f_back"))
    frames = itertools.accumulate(steps, getattr)
    return iter(frames.__next__, None)


def frames_of(ident: int) -> Iterator[FrameType]:
    """Return the frames of a thread, the innermost first; for `read`. A child with threads of its parent has none."""
    by_thread: Callable[[], Mapping[int, FrameType]] = dict if fork.has_dead_threads else sys._current_frames
    return callers(map(operator.methodcaller("get", ident), map(_CALL, [by_thread])))


def variables_of(ident: int, codes: Collection[object]) -> list[tuple[CodeType, Mapping[str, Any]]]:
    """Return the code and the variables of those frames of a thread that run one of these codes."""
    frames, same = itertools.tee(frames_of(ident))
    return read(
        itertools.compress(frames, map(codes.__contains__, map(operator.attrgetter("f_code"), same))),
        "f_code",
        "f_locals",
    )
