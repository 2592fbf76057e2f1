"""The clock of a simulation, and its scheduled events."""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from model.choices import Choice, Chooser

if TYPE_CHECKING:
    from model.process import Process

START = 1000.0


class World:
    def __init__(self, chooser: Chooser, *, diary: list[str] | None = None) -> None:
        self.now = START
        self.current: Process | None = None  # whose code runs
        self.steps = 0
        self.inspect: Callable[[], None] = lambda: None  # called after each event
        self.nested = False  # whether locks are taken inside others
        self.crowded = False  # whether there is anything to inspect
        self._chooser = chooser
        self._diary = diary
        self._events: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self._order = itertools.count()

    def at(self, time: float, call: Callable[..., object], *args: Any) -> None:
        heapq.heappush(self._events, (time, next(self._order), call, args))

    def after(self, delay: float, call: Callable[..., object], *args: Any) -> None:
        heapq.heappush(self._events, (self.now + delay, next(self._order), call, args))

    def run(self, until: float) -> None:
        events = self._events
        while events and events[0][0] <= until:
            self.now, _, call, args = heapq.heappop(events)
            self.steps += 1
            call(*args)
            if self.crowded:
                self.inspect()
        self.now = max(self.now, until)

    def choose(self, choice: Choice, about: str) -> int:
        option = self._chooser.choose(choice, about)
        if option and self._diary is not None:
            self.note(f"    [{choice.name} {about}: {choice.options[option]}]")
        return option

    def delay(self, choice: Choice, about: str) -> float:
        return choice.delays[self.choose(choice, about)]

    def calm_down(self) -> None:
        self._chooser.calm = True

    @property
    def deviations(self) -> int:
        return len(self._chooser.deviations)

    @property
    def calm(self) -> bool:
        return self._chooser.calm

    @property
    def writes_diary(self) -> bool:
        return self._diary is not None

    def note(self, line: str) -> None:
        if self._diary is not None:
            self._diary.append(f"{self.now - START:8.4f}  {line}")


class Pipe:
    """Brings messages to one end in the order they were sent; may be held up, and closed."""

    __slots__ = ("_backlog", "_last", "_world", "closed", "held")

    def __init__(self, world: World) -> None:
        self.closed = False
        self.held = False
        self._world = world
        self._last = 0.0
        self._backlog: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()

    def send(self, delay: float, call: Callable[..., object], *args: Any) -> None:
        self._last = max(self._last, self._world.now + delay)
        self._world.at(self._last, self._arrive, call, args)

    def hold(self) -> None:
        self.held = True

    def release(self) -> None:
        self.held = False
        while self._backlog and not self.held:
            call, args = self._backlog.popleft()
            call(*args)

    def close(self) -> None:
        self.closed = True
        self._backlog.clear()

    def _arrive(self, call: Callable[..., object], args: tuple[Any, ...]) -> None:
        if self.closed:
            return
        if self.held or self._backlog:  # which is being let through, while threads of the receiver are preempted
            self._backlog.append((call, args))
        else:
            call(*args)
