"""The callers that request locks: when they come, how long they wait and hold, and their results."""

from __future__ import annotations

from dataclasses import dataclass

from django_zklock.core.locks.acquisition import REPLY_TIMEOUT
from django_zklock.core.locks.lingering import LingeringWaiter
from django_zklock.core.protocol import spec as locks
from django_zklock.core.protocol.contender import CallerWait, Contender
from django_zklock.core.protocol.grant import Grant, GrantObserver
from django_zklock.core.protocol.spec import QueueSpec
from django_zklock.core.queue.nodes import Kind
from django_zklock.exceptions import LockDeadlock, ZkLockError, ZooKeeperUnavailable
from model.choices import CALLER
from model.invariants import Violation

BASE = "/zklock"


@dataclass(frozen=True, slots=True)
class Script:
    process: int
    begins: float
    key: str = "k"
    kind: Kind = Kind.LOCK
    limit: int = 1  # of permits, that it knows of
    timeout: float | None = None  # 0: does not wait; None: for ever
    holds: float = 0.3
    times: int = 1
    pause: float = 0.1  # between two times
    linger: float = 0.0
    inside: int | None = None  # the number of the caller of the same owner who holds a lock meanwhile


class Caller(GrantObserver):
    def __init__(self, name, script, process, invariants):
        self.name = name
        self.script = script
        self.process = process
        self.waits = False
        self.grant = None
        self.contender = None
        self._outcome = None  # the last one
        self._busy = False  # in the middle of something, while other threads run
        self.resting = False  # holds on, and does not give up
        self.times = script.times if script.inside is None else 0
        self.owner = int(name[1:]) + 1
        self.outer = None  # of the same owner; the lock is acquired while that one is held
        self.inner = []
        self._invariants = invariants
        self._world = process.world
        self._turn = 0
        self._later(script.begins, 0, self._begin)

    @property
    def done(self):
        return not self.process.running or (self.times <= 0 and not self.waits and self.grant is None)

    @property
    def places(self):
        """Its places in ZooKeeper's queue. All that share one have the same; one that holds a lock has its own, too."""
        script, contender = self.script, self.contender
        if not isinstance(contender, LingeringWaiter):
            return {self}
        shared, alone = (self.process, script.key, script.kind), contender.alone
        if contender.lock is alone:
            return {self}
        return {shared, self} if self.waits and alone is not None else {shared}

    @property
    def turn(self):
        turn = self.contender
        return turn if isinstance(turn, LingeringWaiter) and turn.lock is not None and turn in turn.lock.queue else None

    def _begin(self):
        if self.times <= 0 or self.process.closed or self.waits or self.grant is not None:
            return
        self.times -= 1
        self._turn += 1
        self.waits = True
        script = self.script
        waits = script.timeout != 0
        turn, session = self._turn, self.process.session
        spec = QueueSpec(
            key=script.key,
            parent=f"{BASE}/{script.key}",
            kind=script.kind,
            limit=script.limit,
            linger=script.linger,
        )
        caller = locks.Caller(thread="", what="", owner=self.owner)

        def done(outcome):
            if not (isinstance(contender, LingeringWaiter) and isinstance(outcome, Grant) and contender.gone):
                self._on_outcome(turn, outcome)
            if isinstance(outcome, LockDeadlock):
                self._invariants.gave_way(self, contender)

        wait = CallerWait(done, since=self._world.now)
        wait.held = self._held if self.outer is not None and waits else None
        kind = LingeringWaiter if script.linger else Contender
        contender = kind(session, spec, caller, wait, waits=waits)
        self.contender = contender
        self._invariants.comes(self)
        contender.start()
        if script.timeout is not None:
            self._later(script.timeout, turn, self._on_deadline, self.contender.has_position)

    def _later(self, delay, turn, call, *args):
        self._world.after(delay, self.process.on_loop, self._in_turn, turn, call, args)

    def _in_turn(self, turn, call, args):
        if self._busy:
            self._later(0.0005, turn, call, *args)
        elif turn == self._turn:
            self._busy = True
            call(*args)
            self._busy = False

    def _on_outcome(self, turn, outcome):
        if outcome is self._outcome:
            return  # by another thread
        self._outcome = outcome
        if self._world.writes_diary:
            self._world.note(f"{self.name} is told {outcome!r:.100}")
        if isinstance(outcome, Grant):
            self._invariants.granted(self.process, self, outcome)
            outcome.observe(self)
        if turn == self._turn:
            self._later(self._world.delay(CALLER, self.name), turn, self._on_told, outcome)

    def on_lost(self, reason):
        self._invariants.figures.losses += 1
        if self._world.writes_diary:
            self._world.note(f"{self.name} loses the lock: {reason}")
        self._later(self._world.delay(CALLER, self.name), self._turn, self._end)

    def _on_told(self, outcome):
        self.waits = False
        if isinstance(outcome, Grant):
            self.grant = outcome
            self._later(self.script.holds, self._turn, self._release)
            for inner in self.inner:
                inner.times += 1
                inner._later(inner.script.begins, inner._turn, inner._begin)
            return
        if isinstance(outcome, LockDeadlock):
            caller = self
            while caller.outer is not None:
                caller = caller.outer
            caller._end()  # and all that is inside, as by an exception
            return
        if isinstance(outcome, ZkLockError) and not isinstance(outcome, ZooKeeperUnavailable):
            raise Violation("no failure", f"{self.name} is told {outcome!r}")
        self._again()

    def _held(self):
        held = {} if self.outer is None else self.outer._held()
        return {**held, self.grant: False} if self.grant is not None and self.grant.why_invalid() is None else held

    def _on_deadline(self, heard):
        if not self.waits:
            return
        contender = self.contender
        assert contender is not None
        if not heard and not contender.has_position:
            self._later(REPLY_TIMEOUT, self._turn, self._on_deadline, True)
        else:
            self._give_up()

    def give_up(self):
        self._later(0.0, self._turn, self._give_up)

    def _give_up(self):
        if self.resting:
            self._later(0.2, self._turn, self._on_deadline, True)
        elif self.waits:
            self._world.note(f"{self.name} gives up")
            self._end()

    def _release(self):
        if self.grant is not None and (self.resting or not all(inner.done for inner in self.inner)):
            self._later(0.2, self._turn, self._release)
        elif self.grant is not None:
            self._world.note(f"{self.name} releases")
            self._end()

    def _end(self):
        for inner in self.inner:
            inner.times = 0
            if inner.waits or inner.grant is not None:
                inner._end()
        assert self.contender is not None
        self.waits = False
        self.grant = None
        self.contender.abandon()
        self._again()

    def _again(self):
        self._turn += 1
        self._later(self.script.pause, self._turn, self._begin)
