"""
Knows how a permit is taken by another client's recipe, which has a gate before its permits.

Curator's `InterProcessSemaphoreV2` and kazoo's `Semaphore` keep no queue of permits. Who wants one takes an exclusive
lock first, the gate; makes its lease, a node beside those of the others, once there are few enough of them (kazoo), or
makes it and waits until there are (Curator); and lets go of the gate. So two plain contenders do it here, one after
the other, each by the one loop, and this holds them together. It runs on the protocol's thread and never waits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from django_zklock.exceptions import LimitMismatch, ZkLockError, ZooKeeperUnavailable
from django_zklock.locks.protocol.contender import Busy, Contender, Free, Outcome
from django_zklock.locks.protocol.grant import Grant, GrantObserver
from django_zklock.locks.protocol.node import Request
from django_zklock.locks.protocol.replies import Turns
from django_zklock.queue import order, rules
from django_zklock.queue.nodes import Kind, Payload
from django_zklock.queue.operators import OperatorHold
from django_zklock.queue.recipes import Recipe, recipe_of
from django_zklock.zk.gateway import DirectoryState
from django_zklock.zk.loop import Timer
from django_zklock.zk.multi import Create, SetData
from django_zklock.zk.requests import Commit, Done, OptimisticUpdate, Step
from django_zklock.zk.session import Session

GATE_PATIENCE = 0.5
"""
Seconds that one who does not want to wait for a permit waits at the gate, if there seems to be a permit.

Who is in the gate then is about to go through; to give up for that would be to fail beside a free permit.
"""


def make_contender(session: Session, request: Request, done: Callable[[Outcome], object]) -> Contender | Gated:
    """Return the contender for a lock, or for a permit, by the recipe that its layout names."""
    recipe = recipe_of(request.kind, request.layout)
    return Contender(session, request, done) if recipe is None else Gated(session, request, recipe, done)


class Gated(GrantObserver):
    """One contender for one permit, as a `Contender`: through the gate first, then among the leases."""

    def __init__(self, session: Session, request: Request, recipe: Recipe, done: Callable[[Outcome], object]) -> None:
        self.session = session
        self.request = request
        self.on_queued: Callable[[], object] | None = None  # called once if there is somebody ahead
        self._recipe = recipe
        self._done: Callable[[Outcome], object] | None = done
        self._turns = Turns(request.key, self._on_failure, request.about)
        self._left = False  # whatever its parts come to, they are on their way out
        self._answered = False  # who does not wait has been told; read by the caller
        self._posting: OptimisticUpdate | None = None
        self._timer: Timer | None = None
        # Of these the present ones; those before were abandoned. Read by the caller, too.
        self._gate: Contender | None = None
        self._lease: Contender | None = None
        self._gate_grant: Grant | None = None

    def __repr__(self) -> str:
        return f"<contender for a permit of {self.request.key!r}: gate {self._gate!r}, lease {self._lease!r}>"

    # --- from any thread ----------------------------------------------------------------------------------------

    @property
    def placed(self) -> bool:
        """Whether ZooKeeper has said where this one stands."""
        if not self.request.patient:
            return self._answered
        return any(part.placed for part in self._parts)

    @property
    def in_line(self) -> bool:
        """Whether it waits for room in the queue, behind others of this process."""
        return any(part.in_line for part in self._parts)

    @property
    def ahead(self) -> Payload | None:
        """Of one that is ahead, at the gate or among the leases, if it can be read."""
        return next((part.ahead for part in self._parts if part.ahead is not None), None)

    @property
    def operator(self) -> OperatorHold | None:
        """An operator's hold that is in the way, as far as is known."""
        return next((part.operator for part in self._parts if part.operator is not None), None)

    def start(self) -> None:
        """Begin."""
        self.session.post(self._turns.run, self._begin)

    def abandon(self, left: Callable[[bool], object] | None = None) -> None:
        """Leave, from wherever it is, as `Contender.abandon` does."""
        self.session.post(self._leave, left)

    def share(self, *, asked: bool = False) -> None:
        """Do nothing: a permit has no other side."""

    @property
    def _parts(self) -> list[Contender]:
        return [part for part in (self._lease, self._gate) if part is not None]

    # --- in -----------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        if self._done is None:
            return
        if self._recipe.posted:
            self._post_limit()
        else:
            self._approach()

    def _post_limit(self) -> None:
        """Read the limit that is written at the path of the semaphore, or write it."""
        posted = Posted(self.request.parent, self._limit, only_look=self.request.only_look)
        self._posting = OptimisticUpdate(
            self.session, self.request.parent, posted, self._turns.pass_on(self._on_posted), directory=posted.above
        )
        self._posting.start()
        self._timer = self._later(self.session.options.connect_timeout, self._on_no_answer)

    def _on_no_answer(self) -> None:
        self._fail(ZooKeeperUnavailable(self.session.explain(self.session.options.connect_timeout)))

    def _on_posted(self, outcome: Any) -> None:
        self._cancel_timer()
        self._posting = None
        if isinstance(outcome, ZkLockError):
            self._fail(outcome)
        else:
            self._approach()

    def _approach(self) -> None:
        if self.request.patient:
            self._to_gate()
        else:
            # So a try that must fail writes nothing.
            self._lease = self._begun(replace(self._lease_request, only_look=True), self._on_looked)

    def _on_looked(self, outcome: Outcome) -> None:
        if not isinstance(outcome, Free) or self.request.only_look:
            self._conclude(outcome)
            self._leave(None)
            return
        self._lease = None
        self._timer = self._later(GATE_PATIENCE, self._on_gate_closed)
        self._to_gate()

    def _on_gate_closed(self) -> None:
        self._timer = None
        if self._gate is not None and self._gate.placed:  # else it is ZooKeeper that does not answer
            self._conclude(Busy())
            self._leave(None)

    def _to_gate(self) -> None:
        self._gate = self._begun(self._gate_request, self._on_gate)

    def _on_gate(self, outcome: Outcome) -> None:
        if not isinstance(outcome, Grant):
            self._conclude(outcome)
            self._leave(None)
            return
        self._cancel_timer()
        self._gate_grant = outcome
        self._lease = self._begun(self._lease_request, self._on_lease)
        outcome.attach(self)

    def _on_lease(self, outcome: Outcome) -> None:
        grant = self._gate_grant
        if isinstance(outcome, Grant) and (grant is None or grant.why_invalid() is not None):
            self._start_over()  # somebody else may have passed the gate meanwhile, and have seen this permit free
            return
        self._conclude(outcome)
        if isinstance(outcome, Grant):
            self._leave_gate()
        else:
            self._leave(None)

    # --- the gate is lost -----------------------------------------------------------------------------------------

    def on_lost(self, reason: str) -> None:
        """Learn that the gate is lost, so that nothing that was seen behind it counts."""
        if self._done is not None:
            self._turns.run(self._start_over)

    def _start_over(self) -> None:
        lease, self._lease = self._lease, None
        if lease is not None:
            lease.abandon()
        self._leave_gate()
        self._to_gate()

    def _leave_gate(self) -> None:
        grant, self._gate_grant = self._gate_grant, None
        if grant is not None:
            grant.detach(self)
        gate, self._gate = self._gate, None
        if gate is not None:
            gate.abandon()

    # --- out ----------------------------------------------------------------------------------------------------

    def _leave(self, left: Callable[[bool], object] | None) -> None:
        self._done = None
        self._left = True
        self._turns.next()
        self._cancel_timer()
        if self._posting is not None:
            self._posting.abandon()
            self._posting = None
        if self._gate_grant is not None:
            self._gate_grant.detach(self)
        # The lease first: who passes the gate next is to see it gone.
        tally = _Tally(left, len(self._parts))
        for part in self._parts:
            part.abandon(tally)

    def _fail(self, error: ZkLockError) -> None:
        error.lock = error.lock or self.request.key
        self._conclude(error)
        self._leave(None)

    def _on_failure(self, error: Exception) -> None:
        """Give up after something went wrong here; a gate that nobody leaves would be closed for good."""
        self._fail(ZkLockError(f"The lock protocol failed: {error!r}."))

    def _conclude(self, outcome: Outcome) -> None:
        self._cancel_timer()
        self._answered = True
        done, self._done = self._done, None
        if done is not None:
            done(outcome)

    def _later(self, seconds: float, call: Callable[[], object]) -> Timer:
        return self.session.loop.call_later(seconds, lambda: self._turns.run(call))

    def _cancel_timer(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()

    # --- the two contenders ---------------------------------------------------------------------------------------

    @property
    def _limit(self) -> int:
        rule = self.request.rule
        return rule.limit if isinstance(rule, (rules.Permits, rules.Leases)) else 1

    @property
    def _gate_request(self) -> Request:
        return replace(
            self.request,
            key=f"{self.request.key}{self._recipe.gate}",
            parent=f"{self.request.parent}{self._recipe.gate}",
            rule=rules.exclusive,
            kind=Kind.LOCK,
            hold_at_least=0.0,
            patient=True,
        )

    @property
    def _lease_request(self) -> Request:
        return replace(
            self.request,
            parent=f"{self.request.parent}{self._recipe.leases}",
            rule=rules.Leases(self._limit),
            read=order.leases,
            layout="own",  # kazoo only counts them, so a name by which a lost answer is made good is fine
        )

    def _begun(self, request: Request, done: Callable[[Outcome], object]) -> Contender:
        def on_outcome(outcome: Outcome) -> None:
            if part in (self._gate, self._lease) and not self._left:
                self._turns.run(done, outcome)

        part = Contender(self.session, request, on_outcome)
        part.on_queued = self._tell_queued
        part.start()
        return part

    def _tell_queued(self) -> None:
        told, self.on_queued = self.on_queued, None
        if told is not None:
            told()


class Posted:
    """
    A plan: the node of a semaphore holds its limit, as a decimal number. kazoo's processes refuse any other then.

    It is made with that, if it is missing, and lasts, as kazoo's processes remember to have seen it. One that was never
    written gets it, too: whoever made it may still be about to. Text of another kind nobody minds, as in kazoo.
    """

    def __init__(self, path: str, limit: int, *, only_look: bool) -> None:
        self.above = path.rpartition("/")[0]
        self._path = path
        self._limit = limit
        self._only_look = only_look

    def __call__(self, found: DirectoryState | None, session_id: int) -> Step:
        if found is None:
            return Done(True) if self._only_look else Commit((Create(path=self._path, data=self._data),), True)
        if not found.data and found.version == 0 and not self._only_look:
            return Commit((SetData(path=self._path, data=self._data, version=0),), True)
        try:
            limit = int(found.data)
        except ValueError:
            return Done(True)
        if limit != self._limit:
            raise LimitMismatch(
                f"The semaphore at {self._path} has {limit} permits, and not {self._limit}: that is written there, and "
                "kazoo's processes go by it. Say the same, or let them all end, delete the node, and start them anew."
            )
        return Done(True)

    @property
    def _data(self) -> bytes:
        return str(self._limit).encode()


class _Tally:
    """Calls `left` once, when the last of several parts has told whether it is gone: True if all are."""

    def __init__(self, left: Callable[[bool], object] | None, parts: int) -> None:
        self._left = left
        self._parts = parts
        self._gone = True
        if not parts:
            self._tell()

    def __call__(self, gone: bool) -> None:
        self._gone = self._gone and gone
        self._parts -= 1
        if self._parts == 0:
            self._tell()

    def _tell(self) -> None:
        if self._left is not None:
            self._left(self._gone)
