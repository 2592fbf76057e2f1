"""The owner of a lock, and its stack: its bounds, and how others read it."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Coroutine
from typing import Any

import pytest

from django_zklock.core.execution.owner import current_owner
from django_zklock.core.execution.stack import CUT, MAX_ANSWER, MAX_FRAMES, read_answer, stack_of


class Compiled(Coroutine[Any, Any, str]):
    """A coroutine of a compiled module, whose frame cannot be seen. It returns the kind of its owner."""

    def send(self, value: Any) -> Any:
        raise StopIteration(current_owner().kind)

    def throw(self, *error: Any) -> Any:
        raise NotImplementedError

    def close(self) -> None: ...

    def __await__(self) -> Any:
        raise NotImplementedError


@pytest.mark.parametrize("unsafe", [False, True], ids=["", "DJANGO_ALLOW_ASYNC_UNSAFE"])
def test_a_task_of_compiled_code_is_an_owner(monkeypatch: pytest.MonkeyPatch, unsafe: bool) -> None:
    pytest.importorskip("greenlet")
    if unsafe:
        monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "true")
        monkeypatch.delitem(sys.modules, "greenlet")
    assert asyncio.run(Compiled()) == "task"


def deep(depth: int) -> bytes:
    return deep(depth - 1) if depth else stack_of(current_owner())


def test_at_most_so_many_frames_are_shown_the_innermost_ones() -> None:
    lines = read_answer(deep(500))
    assert len(lines) == 1 + MAX_FRAMES + 1
    assert all(line.startswith("deep at ") for line in lines[5:-1])
    assert lines[-1] == CUT


def test_an_answer_has_a_limit_however_long_the_names_are() -> None:
    """Files and functions may have any name."""
    source, name = "def f(depth):\n    return f(depth - 1) if depth else call()\n", "ж" * 400
    module: dict[str, object] = {"call": lambda: stack_of(current_owner())}
    exec(compile(source, name, "exec"), module)
    answer = module["f"](50)  # type: ignore[operator]
    assert len(answer) <= MAX_ANSWER
    assert answer.endswith(CUT.encode())
    assert all(name in line for line in read_answer(answer)[5:-1])


def test_the_name_of_an_owner_is_one_line() -> None:
    answers: list[bytes] = []
    thread = threading.Thread(target=lambda: answers.append(stack_of(current_owner())), name="a\nb\x1b[2J\ud800")
    thread.start()
    thread.join()
    assert read_answer(answers[0])[0] == r"thread 'a\nb\x1b[2J\ud800'"


def test_any_bytes_are_read_as_a_few_lines_that_print() -> None:
    for data in (b"", b"\xff\xfe\x00", b"\x1b[31m\r\n\xe2\x80\xae", b"\n" * 2**20, b"x" * 2**20, b"<script>"):
        lines = read_answer(data)
        assert len(lines) <= MAX_FRAMES + 2
        assert all(line.isprintable() and len(line) <= 512 for line in lines)
