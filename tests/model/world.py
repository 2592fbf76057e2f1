"""The clock of a simulation, and its scheduled events."""

import heapq
import itertools
from collections import deque

START = 1000.0


class World:
    def __init__(self, chooser, *, diary=None):
        self.now = START
        self.current = None  # whose code runs
        self.steps = 0
        self.inspect = lambda: None  # called after each event
        self.nested = False  # whether locks are taken inside others
        self.crowded = False  # whether there is anything to inspect
        self._chooser = chooser
        self._diary = diary
        self._events = []
        self._order = itertools.count()

    def at(self, time, call, *args):
        heapq.heappush(self._events, (time, next(self._order), call, args))

    def after(self, delay, call, *args):
        heapq.heappush(self._events, (self.now + delay, next(self._order), call, args))

    def run(self, until):
        events = self._events
        while events and events[0][0] <= until:
            self.now, _, call, args = heapq.heappop(events)
            self.steps += 1
            call(*args)
            if self.crowded:
                self.inspect()
        self.now = max(self.now, until)

    def choose(self, choice, about):
        option = self._chooser.choose(choice, about)
        if option and self._diary is not None:
            self.note(f"    [{choice.name} {about}: {choice.options[option]}]")
        return option

    def delay(self, choice, about):
        return choice.delays[self.choose(choice, about)]

    def calm_down(self):
        self._chooser.calm = True

    @property
    def deviations(self):
        return len(self._chooser.deviations)

    @property
    def calm(self):
        return self._chooser.calm

    @property
    def writes_diary(self):
        return self._diary is not None

    def note(self, line):
        if self._diary is not None:
            self._diary.append(f"{self.now - START:8.4f}  {line}")


class Pipe:
    """Brings messages to one end in the order they were sent; may be held up, and closed."""

    __slots__ = ("_backlog", "_last", "_world", "closed", "held")

    def __init__(self, world):
        self.closed = False
        self.held = False
        self._world = world
        self._last = 0.0
        self._backlog = deque()

    def send(self, delay, call, *args):
        self._last = max(self._last, self._world.now + delay)
        self._world.at(self._last, self._arrive, call, args)

    def hold(self):
        self.held = True

    def release(self):
        self.held = False
        while self._backlog and not self.held:
            call, args = self._backlog.popleft()
            call(*args)

    def close(self):
        self.closed = True
        self._backlog.clear()

    def _arrive(self, call, args):
        if self.closed:
            return
        if self.held or self._backlog:  # which is being let through, while threads of the receiver are preempted
            self._backlog.append((call, args))
        else:
            call(*args)
