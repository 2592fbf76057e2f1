"""The callers that request locks: when they come, how long they wait and hold, and their results."""

from __future__ import annotations

from dataclasses import dataclass

from django_zklock.exceptions import ZkLockError, ZooKeeperUnavailable
from django_zklock.locks.protocol import spec as locks
from django_zklock.locks.protocol.contender import Contender, Outcome
from django_zklock.locks.protocol.grant import Grant, GrantObserver
from django_zklock.locks.protocol.spec import QueueSpec
from django_zklock.locks.spec import REPLY_TIMEOUT
from django_zklock.queue.nodes import Kind
from model.choices import CALLER
from model.invariants import Invariants, Violation
from model.process import Process

BASE = "/zklock"


@dataclass(frozen=True, slots=True)
class Script:
    """What one caller does."""

    process: int
    begins: float
    key: str = "k"
    kind: Kind = Kind.LOCK
    limit: int = 1  # of permits, that it knows of
    downgrades: float | None = None  # seconds after which a writer reads
    timeout: float | None = None  # 0: does not wait; None: for ever
    only_look: bool = False
    holds: float = 0.3
    times: int = 1
    pause: float = 0.1  # between two times


class Fixed(locks.Caller):
    """Has the same data at each run: with no time and no host in them."""

    def payload(self, spec: QueueSpec, guid: str) -> bytes:
        return f"{guid} {spec.limit}".encode()


class Caller(GrantObserver):
    """One thread, say, that takes a lock again and again."""

    def __init__(self, name: str, script: Script, process: Process, invariants: Invariants) -> None:
        self.name = name
        self.script = script
        self.process = process
        self.waits = False
        self.grant: Grant | None = None
        self.contender: Contender | None = None
        self.resting = False  # holds on, and does not give up
        self.times = script.times
        self._invariants = invariants
        self._world = process.world
        self._turn = 0
        self._world.after(script.begins, process.on_loop, self._begin)

    @property
    def done(self) -> bool:
        """Whether it wants no more."""
        return not self.process.running or (self.times <= 0 and not self.waits and self.grant is None)

    def _begin(self) -> None:
        if self.times <= 0 or self.process.closed:
            return
        self.times -= 1
        self._turn += 1
        self.waits = True
        script = self.script
        waits = not script.only_look and script.timeout != 0
        turn = self._turn
        self.contender = Contender(
            self.process.session,
            QueueSpec(key=script.key, parent=f"{BASE}/{script.key}", kind=script.kind, limit=script.limit),
            Fixed(thread="", what=""),
            lambda outcome: self._on_outcome(turn, outcome),
            waits=waits,
            only_look=script.only_look,
        )
        self.contender.start()
        if script.timeout is not None:
            self._later(script.timeout, turn, self._on_deadline, self.contender.placed)

    def _later(self, delay: float, turn: int, call: object, *args: object) -> None:
        self._world.after(delay, self.process.on_loop, self._in_turn, turn, call, args)

    def _in_turn(self, turn: int, call: object, args: tuple[object, ...]) -> None:
        if turn == self._turn:
            call(*args)  # type: ignore[operator]

    # --- on the loop's thread -------------------------------------------------------------------------------------

    def _on_outcome(self, turn: int, outcome: Outcome) -> None:
        if self._world.writes_diary:
            self._world.note(f"{self.name} is told {outcome!r:.100}")
        if isinstance(outcome, Grant):
            self._invariants.granted(self.process, self, outcome)
            outcome.attach(self)
        if turn == self._turn:
            self._later(self._world.delay(CALLER, self.name), turn, self._on_told, outcome)

    def on_lost(self, reason: str) -> None:
        self._invariants.figures.losses += 1
        if self._world.writes_diary:
            self._world.note(f"{self.name} loses the lock: {reason}")
        self._later(self._world.delay(CALLER, self.name), self._turn, self._leave)

    # --- on its own -----------------------------------------------------------------------------------------------

    def _on_told(self, outcome: Outcome) -> None:
        self.waits = False
        if isinstance(outcome, Grant):
            self.grant = outcome
            self._later(self.script.holds, self._turn, self._release)
            if self.script.downgrades is not None and outcome.kind is Kind.WRITE:
                self._later(self.script.downgrades, self._turn, self._downgrade)
            return
        self._invariants.figures.refusals += 1
        if isinstance(outcome, ZkLockError) and not isinstance(outcome, ZooKeeperUnavailable):
            raise Violation("no failure", f"{self.name} is told {outcome!r}")
        self._again()

    def _on_deadline(self, heard: bool) -> None:
        if not self.waits:
            return
        contender = self.contender
        assert contender is not None
        if not heard and not contender.placed:
            self._later(REPLY_TIMEOUT, self._turn, self._on_deadline, True)
        else:
            self.give_up()

    def give_up(self) -> None:
        """Want the lock no more."""
        if self.resting:
            self._later(0.2, self._turn, self._on_deadline, True)
        elif self.waits:
            self._invariants.figures.give_ups += 1
            self._world.note(f"{self.name} gives up")
            self._leave()

    def _downgrade(self) -> None:
        if self.grant is not None and self.contender is not None:
            self._invariants.figures.downgrades += 1
            self._world.note(f"{self.name} only reads from now on")
            self.contender.share()

    def _release(self) -> None:
        if self.grant is not None and self.resting:
            self._later(0.2, self._turn, self._release)
        elif self.grant is not None:
            self._world.note(f"{self.name} releases")
            self._leave()

    def _leave(self) -> None:
        assert self.contender is not None
        self.waits = False
        self.grant = None
        self.contender.abandon()
        self._again()

    def _again(self) -> None:
        self._turn += 1
        self._later(self.script.pause, self._turn, self._begin)
