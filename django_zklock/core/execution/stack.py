"""The stack of a thread, an asyncio task or a greenlet, read from another thread while it runs or waits."""

from __future__ import annotations

import asyncio
import faulthandler
import functools
import gc
import itertools
import linecache
import operator
import os
import re
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from types import AsyncGeneratorType, CodeType, CoroutineType, FrameType, GeneratorType
from typing import Any, Final, TypeAlias, TypeVar

from django_zklock.core import fork
from django_zklock.core.execution.owner import Owner
from django_zklock.core.queue.escaping import gettext_noop, printable

DIRECTORY: Final = "!stacks"
"""The directory of the answers. No segment of a key begins with `!`, which is percent-encoded there."""
MAX_FRAMES: Final = 60
MAX_ANSWER: Final = 16 * 1024  # bytes
NO_WORK: Final = gettext_noop("No work runs under the lock.")
OVER: Final = gettext_noop("It has ended without a release.")
NOT_SHOWN: Final = gettext_noop("Its functions cannot be shown: it is compiled code, or one of more than 100 threads.")
OFF: Final = gettext_noop("STACKS is False in its settings.")
FORKED: Final = gettext_noop("It was forked without Python's hooks, so no stack can be read.")
CUT: Final = gettext_noop("... The outer functions are left out.")
"""Lines that are no code. Pages translate them."""

_AWAITED: Final = ("cr_await", "gi_yieldfrom", "ag_await")
_THREAD: Final = re.compile(r"(?:Current thread|Thread) 0x([0-9a-f]+)")
_LINE: Final = re.compile(r'  File "(.*)", line (\d+|\?\?\?) in (.*)')
_ESCAPED: Final = re.compile(r"\\(?:x(?!00)([0-9a-f]{2})|u([0-9a-f]{4})|U00(0[0-9a-f]{5}|10[0-9a-f]{4}))")
_CALL: Final = operator.methodcaller("__call__")
_SWITCHES: Final = (gc.disable, gc.enable)

_Result = TypeVar("_Result")
_Row: TypeAlias = tuple[str, str, int]  # the name of a function, its file, and the line
_ROW: Final = ("f_code.co_name", "f_code.co_filename", "f_lineno")  # of a frame


def stack_of(owner: Owner | None) -> bytes:
    """
    Return what an owner runs now: its name, then the function, file, line and code of each frame, the innermost first.

    No values are read: neither arguments nor other variables. It reads source files, so it may take some time.
    """
    if owner is None or owner.kind == "message":
        return NO_WORK.encode()
    try:
        rows, note = ([], OVER) if owner.is_over else (_rows(owner), NOT_SHOWN)
    except OSError as error:
        rows, note = [], f"Its functions could not be read: {error.strerror}"
    lines = [str(owner), *([] if rows else [note])]
    for name, file, line in rows[: MAX_FRAMES + 1]:
        linecache.checkcache(file)
        lines.append(f"{name} at {file}:{line}: {linecache.getline(file, line).strip()}")
    data = "\n".join(map(printable, lines)).encode()
    is_cut = len(rows) > MAX_FRAMES or len(data) > MAX_ANSWER
    return data[: MAX_ANSWER - len(CUT) - 1].rpartition(b"\n")[0] + b"\n" + CUT.encode() if is_cut else data


def read_answer(answer: bytes) -> list[str]:
    """Return the lines of an answer, which any program may have written."""
    return list(map(printable, answer[:MAX_ANSWER].decode(errors="replace").split("\n", MAX_FRAMES + 1)))


def _rows(owner: Owner) -> list[_Row]:
    """Return the rows of an owner, the innermost first."""
    if owner.kind == "task":
        return _of_task(owner)
    suspended = read(callers(_attribute(owner.subject, "gr_frame")), *_ROW) if owner.kind == "greenlet" else []
    return suspended or _of_thread(owner.thread)


def _attribute(value: object, name: str) -> Iterator[FrameType | None]:
    return map(getattr, [value], [name], [None])


def _of_thread(ident: int) -> list[_Row]:
    """
    Return the rows of a thread, as `faulthandler` writes them.

    It neither creates frames nor allocates memory, so it cannot harm a thread that it reads. It keeps the GIL while it
    writes: a full pipe would block the process, so it writes into a file without a name.
    """
    with open(os.memfd_create("stacks"), "w+b") if hasattr(os, "memfd_create") else tempfile.TemporaryFile() as file:
        faulthandler.dump_traceback(file.fileno())
        file.seek(0)
        text = file.read().decode("ascii", "replace")
    for thread in text.split("\n\n"):
        if (head := _THREAD.match(thread)) is not None and int(head[1], 16) == ident:
            return [
                (_unescaped(name), _unescaped(path), int(line) if line.isdecimal() else 0)
                for path, line, name in _LINE.findall(thread)
            ]
    return []


def _unescaped(text: str) -> str:
    return _ESCAPED.sub(lambda match: chr(int(match[match.lastindex or 0], 16)), text)


def _of_task(owner: Owner) -> list[_Row]:
    """Return the rows of a task. While it runs, they are a part of the stack of its thread."""
    task: asyncio.Task[Any] = owner.subject
    code = getattr(task.get_coro(), "cr_code", None)
    if code is not None and asyncio.current_task(task.get_loop()) is task:
        rows = _of_thread(owner.thread)
        for index in reversed(range(len(rows))):
            if rows[index][:2] == (code.co_name, code.co_filename):
                return rows[: index + 1]
    return list(itertools.islice(_awaiting(task), 1000))[::-1]


def _awaiting(awaited: Any) -> Iterator[_Row]:
    """Yield the rows of what is suspended in a task, the outermost first. A task that it awaits is a part of it."""
    while awaited is not None:
        awaited = awaited.get_coro() if isinstance(awaited, asyncio.Task) else awaited
        name = next((name for name in _AWAITED if hasattr(awaited, name)), None)
        if name is not None:
            yield from read(filter(None, _attribute(awaited, f"{name[:2]}_frame")), *_ROW)
            awaited = getattr(awaited, name)
        else:  # an object in C, such as the step of an asynchronous generator
            kinds = (asyncio.Task, CoroutineType, GeneratorType, AsyncGeneratorType)
            awaited = next((inner for inner in gc.get_referents(awaited) if isinstance(inner, kinds)), None)


# --- frames of other threads --------------------------------------------------------------------------------------


def read(frames: Iterator[FrameType], *attributes: str) -> list[Any]:
    """
    Return these attributes of each frame. `frames` is an iterator in C that creates the frames, such as `callers`.

    All is done in C, so no bytecode runs from the first frame to the last: no other thread goes on, no exception
    strikes, and nothing is forked. A frame that outlives its function would keep its variables, and this thread would
    destroy them.

    On Python 3.10 and 3.11 the garbage collector is off meanwhile. It would run in the middle of `_current_frames` or
    of `f_back`, and finalizers would let other threads go on. They may end the very frame, which crashes the process,
    or be at their start or end, which hangs it. See https://github.com/python/cpython/issues/106883.
    """
    return no_collection(functools.partial(list, map(operator.attrgetter(*attributes), frames)))


def no_collection(call: Callable[[], _Result]) -> _Result:
    """Return `call()`, a function of C, while the garbage collector of Python 3.10 and 3.11 is off; see `read`."""
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
