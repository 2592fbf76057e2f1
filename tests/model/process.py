"""One simulated process: a session with the real code, its threads in turn, and its pauses."""

import math
from collections import deque
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

from django_zklock.core.protocol.contender import Contender
from django_zklock.core.protocol.registry import Registry
from django_zklock.core.zk import session as sessions
from django_zklock.core.zk.loop import Timer
from django_zklock.core.zk.session import Session
from model.choices import BACKLOG, EVENT, PREEMPT, TIMER

_Call = tuple[Callable[..., object], tuple[Any, ...]]


class SimulatedLoop:
    """Stands in for `django_zklock.core.zk.loop.Loop`: runs what it is given when the simulation says so."""

    def __init__(self, process):
        self._process = process
        self._world = process.world
        self._posted = deque()
        self._delivered = deque()
        self._running = False
        self._busy = False  # with something that takes its time
        self._late = []  # what waits for the end of that

    def start(self):
        pass

    def stop(self):
        pass

    def post(self, call, *args):
        self._posted.append((call, args))
        option = self._world.choose(EVENT, self._process.name)
        self._world.after(EVENT.delays[option], self._process.on_loop, self._run_posted)
        if option == len(EVENT.options) - 1 and not self._busy:
            self._busy = True
            self._world.after(EVENT.delays[option], self._process.on_loop, self._idle)

    def deliver(self, call, *args):
        self._delivered.append((call, args))
        if not self._running and not self._busy:
            self._run_delivered()

    def call_later(self, delay, call):
        timer = Timer(call)
        due = self._process.monotonic() + max(0.0, delay)
        late = self._world.delay(TIMER, self._process.name)
        self._world.after(max(0.0, delay) + late, self._process.on_loop, self._on_due, due, timer)
        return timer

    def _on_due(self, due, timer):
        missing = due - self._process.monotonic()
        if timer._call is None:
            return
        if missing > 1e-6:  # the clock of timers stood still for a while
            self._world.after(missing, self._process.on_loop, self._on_due, due, timer)
        elif self._busy:
            self._late.append(timer.run)
        else:
            self._run(timer.run, ())

    def _run_posted(self):
        if self._busy:
            self._late.append(self._run_posted)
        elif self._posted:
            call, args = self._posted.popleft()
            self._run(call, args)

    def _idle(self):
        """End the busy time: with what was being done, as it may be that which took so long."""
        self._busy = False
        if self._posted:
            self._run(*self._posted.popleft(), first=True)
        self._run_late()
        self._run_delivered()

    @contextmanager
    def preempted(self):
        """Let the loop do nothing more, if it is the one that is preempted."""
        stops = self._running and not self._busy
        self._busy |= stops
        yield
        if stops:
            self._busy = False
            self._world.after(0.0, self._process.on_loop, self._run_late)

    def _run_late(self):
        if self._busy:
            return  # again
        late, self._late = self._late, []
        for call in late:
            if call == self._run_posted:
                self._run_posted()
            else:
                self._run(call, ())

    def _run(self, call, args, *, first=False):
        if not first:
            self._run_delivered()
        self._running = True
        try:
            call(*args)
        finally:
            self._running = False
        self._run_delivered()

    def _run_delivered(self):
        while self._delivered:
            call, args = self._delivered.popleft()
            self._running = True
            try:
                call(*args)
            finally:
                self._running = False


def _session_on(loop, options):
    module = sessions
    before, module.Loop = module.Loop, lambda name: loop
    try:
        return Session(options)
    finally:
        module.Loop = before


class Process:
    def __init__(self, name, number, ensemble, options):
        self.name = name
        self.number = number
        self.world = ensemble.world
        self.ensemble = ensemble
        self.alive = True
        self.closed = False
        self.paused = False
        self.isolated = False
        self.preempted_at = 0.0  # when a thread last went on; infinite while one is preempted
        self.connections = {}
        self.remains = []  # requests of closed connections that the network holds up
        self._stood_still = 0.0  # seconds that the clock of timers has missed
        self._backlogs = ([], [])
        self._pauses = 0
        self.loop = SimulatedLoop(self)
        self.session = _session_on(self.loop, options)
        self.session.loop.post(self.session._start_client)

    @property
    def registry(self):
        return self.session.attached(Registry)

    @property
    def contenders(self):
        return [observer for observer in self.session.observers if isinstance(observer, Contender)]

    @property
    def running(self):
        return self.alive and not self.closed

    def monotonic(self):
        return self.world.now - self._stood_still

    def on_connection_thread(self, call, *args):
        self._on_thread(0, call, args)

    def on_loop(self, call, *args):
        self._on_thread(1, call, args)

    def _on_thread(self, thread, call, args):
        if not self.alive:
            return
        if self.paused:
            self._backlogs[thread].append((call, args))
            return
        world = self.world
        before, world.current = world.current, self
        try:
            call(*args)
        finally:
            world.current = before

    def preempt(self):
        """Let other threads run in the middle of what this one does, for as long as is chosen."""
        seconds = self.world.delay(PREEMPT, self.name)
        if seconds and not any(self._backlogs):  # those come first
            inner, self.preempted_at = self.preempted_at == math.inf, math.inf
            with self.loop.preempted():
                before, self.world.current = self.world.current, None
                self.world.run(self.world.now + seconds)
                self.world.current = before
            self.preempted_at = math.inf if inner else self.world.now

    def pause(self, seconds, *, suspended=False):
        """Let none of its threads run for a while; `suspended`: nor the clock of its timers."""
        if not self.paused:
            self.paused = True
            self._pauses += 1
            self.world.after(seconds, self._resume, self._pauses, seconds if suspended else 0.0)

    def _resume(self, pause, stood_still):
        if not self.paused or pause != self._pauses:
            return
        self.paused = False
        self._stood_still += stood_still
        self.world.note(f"{self.name} resumes")
        first = self.world.choose(BACKLOG, self.name)
        for thread in (first, 1 - first):
            backlog = self._backlogs[thread]
            while backlog and not self.paused:
                call, args = backlog.pop(0)
                self._on_thread(thread, call, args)

    def isolate(self, seconds):
        if not self.isolated:
            self.isolated = True
            for connection in self.connections:
                connection.hold()
            self.world.after(seconds, self.rejoin)

    def rejoin(self):
        self.isolated = False
        for connection in list(self.connections):
            connection.reached = True
            connection.release()
        remains, self.remains = self.remains, []
        for pipe in remains:
            pipe.release()

    def crash(self):
        self.alive = False
        for connection in list(self.connections):
            connection.back.close()
            connection.there.send(0.001, connection.server.hung_up, connection)
