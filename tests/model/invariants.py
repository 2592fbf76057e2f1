"""
The invariants of every schedule. They are checked after each event.

A lock cannot prevent that an operator deletes its node, or that a second client closes its session. A grant that was
robbed like that is excused for as long as its process may take to notice.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from django_zklock.core.locks.lingering import LingeringGrant, LingeringWaiter
from django_zklock.core.protocol.grant import Grant
from django_zklock.core.protocol.registry import Registry
from django_zklock.core.queue import nodes
from django_zklock.core.queue.nodes import Kind
from django_zklock.core.zk.lease import LEASE_SHARE
from model import reference
from model.ensemble import Ensemble
from model.process import Process
from model.world import World

SHARE = frozenset({Kind.READ, Kind.PERMIT})
LOOKS_AFTER = 0.95  # seconds of a circle, until its youngest member sees it
LOOKS_EVERY = 1.0  # seconds until an older member of a circle gives way instead of a younger one
ENDS_WITHIN = 8.0  # seconds that a circle lasts, while nothing is amiss
SOON = 0.2  # seconds in which a process learns what has happened, while nothing is amiss


class Violation(BaseException):
    """Something that must hold did not; no `Exception`, which the protocol itself would catch and log."""

    def __init__(self, rule, text):
        super().__init__(f"{rule}: {text}")
        self.rule = rule


@dataclass(slots=True, eq=False)
class Granted:
    process: Process
    caller: object
    grant: Grant
    invalid: bool = False  # seen so once


@dataclass(slots=True)
class Staying:
    began: float
    linger: float  # of the last owner


@dataclass(slots=True)
class Figures:
    grants: int = 0
    losses: int = 0
    faults: int = 0
    handed_on: int = 0  # grants with the token of the owner before
    victims: int = 0  # of circles


@dataclass(slots=True)
class Invariants:
    world: World
    ensemble: Ensemble
    figures: Figures = field(default_factory=Figures)
    processes: list[Process] = field(default_factory=list)
    settled: bool = False  # nothing has been amiss for a while
    _live: list[Granted] = field(default_factory=list)
    _tokens: dict[tuple[str, Kind], int] = field(default_factory=dict)  # the highest of a key and a kind
    _entitled: dict[str, set[str]] = field(default_factory=dict)  # paths of those whom a queue gives the lock now
    _once: set[str] = field(default_factory=set)  # paths of those whom it ever gave a permit
    _robbed: dict[str, float] = field(default_factory=dict)  # paths of nodes deleted from outside, and when
    _killed: dict[int, float] = field(default_factory=dict)  # sessions closed from outside, and when
    _before: dict = field(default_factory=dict)  # by caller: those in line when it came
    _made: dict[str, float] = field(default_factory=dict)  # paths of contenders that are there, and since when
    _holders: dict[str, str] = field(default_factory=dict)  # the last owners of locks, by path
    _since: dict[str, float] = field(default_factory=dict)  # when the last wait of each owner began
    _gone: dict[str, str] = field(default_factory=dict)  # by guid, why it was no victim; empty if it was one
    _locks: dict[str, Staying] = field(default_factory=dict)  # of locks that linger, by the path of the znode
    _changes: int = 0  # of the tree
    _counted: dict[Process, tuple[int, ...]] = field(default_factory=dict)  # what was there at the last count

    def begin(self):
        self.world.inspect = self.look
        self.ensemble.before_change = self._before_change
        self.ensemble.on_change = self._on_change
        self.ensemble.on_expiry = self._on_expiry

    def robbed(self, path):
        return path in self._robbed

    def comes(self, caller):
        self._since[str(caller.owner)] = self.world.now
        self._before[caller] = [(other, turn, turn.lock) for other in self._before if (turn := other.turn) is not None]

    def granted(self, process, caller, grant):
        self.figures.grants += 1
        if isinstance(grant, LingeringGrant):
            self._see_turn(process, caller, grant)
        node = self.ensemble.history.get(grant.path)
        if process.preempted_at < self.world.now:  # else it was decided before, or the news are being told
            if grant.why_invalid() is not None:
                raise Violation("valid when granted", f"{caller.name} got {grant.path} though {grant.why_invalid()}")
            if process.session.suspect:
                raise Violation("proven when granted", f"{caller.name} got {grant.path} by a suspect session")
        if node is None or node.owner != process.session.session_id or grant.token != node.czxid:
            raise Violation("own node", f"{caller.name} of {process.session.session_id} got {grant.path}: {node}")
        if grant.path not in self._robbed and node.owner not in self._killed:
            self._see_token(caller, grant)
        self._holders[grant.path] = f"{grant.session_id} {caller.owner}"
        self._live.append(Granted(process, caller, grant))
        self.world.crowded = True

    def gave_way(self, caller, contender):
        """Take note of a victim: it was in a circle when its znode was deleted."""
        self.figures.victims += 1
        if isinstance(contender, LingeringWaiter):
            contender = contender.alone.contender if contender.alone is not None else None
        guid = contender.guid if contender is not None else ""
        why = self._gone.get(guid, "its znode is there")
        if why:
            raise Violation("no victim outside a circle", f"{caller.name} by {guid}: {why}")

    def see_no_circle(self):
        tree = self.ensemble.truth
        for path in reference.waits(tree) if self.world.nested else ():
            circle = reference.circle(tree, path, self._holders)
            if circle and max(tree.nodes[member].born for member in circle) < self.world.now - ENDS_WITHIN:
                raise Violation("every circle ends", f"{circle} still wait for each other")

    def _before_change(self, change):
        """Judge each waiter that is about to go: whether it may say that this ends a circle."""
        tree = self.ensemble.truth
        for path in tree.nodes.keys() & change.deleted if self.world.nested else ():
            circle, waiters = reference.circle(tree, path, self._holders), reference.waits(tree)
            why = "it was in no circle"
            if circle and change.why == "asked" and not change.closed:
                members = waiters.keys() & circle
                younger = sum(tree.nodes[member].czxid > tree.nodes[path].czxid for member in members)
                # A member may have queued again, and so has become the youngest.
                owners = [reference.owner(tree, member).partition(" ")[2] for member in members]
                lasted = self.world.now - max(self._since.get(owner, 0.0) for owner in owners)
                due = LOOKS_AFTER + LOOKS_EVERY * (younger > 0)
                # After many deviations, a circle may have become another one since the first look.
                least = due if self.world.deviations <= 1 else 0.0
                is_due = least <= lasted <= (math.inf if self.world.deviations else due + 2 * SOON)
                why = "" if is_due else f"the circle has lasted {lasted:.3f} s, with {younger} younger waiters"
            self._gone[path.rpartition("/")[2][3:39]] = why

    def _see_token(self, caller, grant):
        for kind in Kind:
            last = self._tokens.get((grant.key, kind), 0)
            if grant.token == last and isinstance(grant, LingeringGrant):
                self.figures.handed_on += 1  # one znode has one token
            elif grant.token <= last and not (kind is grant.kind and kind in SHARE):
                raise Violation("tokens rise", f"{caller.name} got {grant.token:x} after {last:x}")
        own = (grant.key, grant.kind)
        self._tokens[own] = max(grant.token, self._tokens.get(own, 0))

    def _see_turn(self, process, caller, grant):
        """See that nobody was overtaken in the process, and that the lock is passed on to another one in time."""
        shared = caller.turn.lock if caller.turn is not None else None
        for other, turn, before in self._before[caller]:
            is_new = before is not shared  # a thread that is preempted as it ends may queue again after one that comes
            if other.waits and other.turn is turn and turn.lock is shared and not (is_new and process.preempted_at):
                raise Violation("first come, first served", f"{caller.name} got {grant.path} before {other.name}")
        now = self.world.now
        staying = self._locks.get(grant.path)
        if staying is None:
            self._locks[grant.path] = Staying(now, caller.script.linger)
            return
        linger, staying.linger = staying.linger, caller.script.linger
        if self.settled and now > SOON + staying.began + linger:
            mine = grant.path.rpartition("/")[0]
            for path, made in self._made.items():
                if path != grant.path and path.rpartition("/")[0] == mine and now > made + SOON:
                    raise Violation("passed on in time", f"{caller.name} got {grant.path}, and {path} waits")

    def entitled(self, parent):
        return self._entitled.get(parent, set())

    def _on_change(self, change):
        now = self.world.now
        self._changes += 1
        self._made.update({path: now for path, _ in change.created if "/_c_" in path})
        for path in change.deleted:
            self._made.pop(path, None)
        touched = [path for path, _ in change.created] + [*change.deleted]
        for parent in {path.rpartition("/")[0] for path in touched}:
            entitled = self._entitled[parent] = reference.entitled(self.ensemble.truth, parent)
            self._once |= entitled
        if change.why == "by an operator":
            self._robbed.update(dict.fromkeys(change.deleted, now))
        elif change.why == "killed":
            self._killed[change.closed] = now

    def _on_expiry(self, session):
        """The leader gives up a session: nobody may hold anything by it, unless it cannot know of its timeout."""
        if session in self.ensemble.untold:
            self._killed[session] = self.world.now
        for grant in self._live:
            if grant.grant.session_id == session and session not in self._killed and self._valid(grant):
                left = grant.grant.session.leased_until - self.world.now
                raise Violation("lease within session", f"{grant.caller.name} may trust it {left:.3f} s more")

    def look(self):
        for process in self.processes:
            if process.running:
                self._count_paths(process)
        valid = {}
        for grant in [*self._live]:
            if not grant.process.alive or grant.grant.released:
                self._live.remove(grant)
            elif self._valid(grant) and not self._excused(grant):
                valid.setdefault(grant.grant.key, []).append(grant)
                self._stands(grant)
        for holds in valid.values():
            self._agree(holds)
        self.world.crowded = bool(self._live)

    def _count_paths(self, process):
        """See that the session would end with no more bytes of paths than its process has counted."""
        registry = process.session._attached.get(Registry)
        if not isinstance(registry, Registry):
            return
        guids = registry.guids
        there = (self._changes, registry.path_bytes, len(guids), process.session.session_id or -1)
        if self._counted.get(process) == there:
            return
        self._counted[process] = there
        if registry.path_bytes != sum(guids.values()):
            raise Violation("paths are counted", f"{process.name} has {registry.path_bytes}, not {guids}")
        for path in self.ensemble.truth.owned(process.session.session_id or -1):
            name = path.rpartition("/")[2]
            child = nodes.parse(name)
            guid = name if child is None else child.guid
            if guid not in self.ensemble.strays and guids.get(guid, 0) < len(path) + 4:
                raise Violation("paths are counted", f"{process.name} has {guids.get(guid)} for {path}")

    def _valid(self, grant):
        if grant.grant.why_invalid() is not None:
            grant.invalid = True
            return False
        if grant.invalid:
            raise Violation("lost is for good", f"{grant.caller.name} holds {grant.grant.path} again")
        return True

    def _excused(self, grant):
        now, timeout = self.world.now, self.ensemble.timeout
        killed = self._killed.get(grant.grant.session_id or 0)
        if killed is not None:
            if now > killed + LEASE_SHARE * timeout + 1e-6:
                raise Violation("lease within session", f"{grant.caller.name} trusts a session killed at {killed}")
            return True
        robbed = self._robbed.get(grant.grant.path)
        if robbed is None:
            return False
        believed = now - robbed
        if believed > timeout:
            raise Violation("robbed ones learn it", f"{grant.caller.name} believes in {grant.grant.path}: {believed} s")
        return True

    @staticmethod
    def _agree(holds):
        kinds = {hold.grant.kind for hold in holds}
        if len(holds) > 1 and (len(kinds) > 1 or not kinds & SHARE):
            names = " and ".join(f"{hold.caller.name} ({hold.grant.kind.name})" for hold in holds)
            raise Violation("one holder", f"{names} hold {holds[0].grant.key}")

    def _stands(self, grant):
        path = grant.grant.path
        parent = path.rpartition("/")[0]
        if path not in self.ensemble.truth.nodes:
            raise Violation("a hold has a node", f"{grant.caller.name} holds by {path}, which is gone")
        # A permit is kept when the limit is lowered; how many there are then, was in force when it was given.
        known = self._once if grant.grant.kind is Kind.PERMIT else self.entitled(parent)
        if path not in known:
            others = sorted(self.ensemble.truth.nodes[parent].children, key=lambda name: name[-10:])
            raise Violation("first come, first served", f"{grant.caller.name} holds by {path}, in {others}")
