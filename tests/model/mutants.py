"""Protocols with one mistake each. A search that finds no broken lock proves nothing about a sound one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

from django_zklock.core import clock
from django_zklock.core.locks.lingering import LingeringLock, LingeringWaiter
from django_zklock.core.protocol import deadlock
from django_zklock.core.protocol.contender import Contender, Predecessors
from django_zklock.core.protocol.deadlock import DeadlockSearch
from django_zklock.core.protocol.grant import Grant
from django_zklock.core.protocol.registry import Deletion, Registry
from django_zklock.core.queue import nodes
from django_zklock.core.queue.deadlock import Blockers, WaitsFor, blockers
from django_zklock.core.zk.errors import INTERRUPTED, NodeMissing, ZkError
from django_zklock.core.zk.gateway import Gateway
from django_zklock.core.zk.heartbeat import Heartbeat
from django_zklock.core.zk.lease import Lease
from django_zklock.core.zk.multi import Delete
from model.client import SimulatedClient
from model.explore import exhaust, explore
from model.patches import replaced
from model.scenario import (
    IDLE,
    LASTING,
    LINGERING,
    NESTED,
    PERMITS,
    WAITING,
    Scenario,
    drawn,
    drawn_moving,
    drawn_nested,
)

_Patch = tuple[Any, str, Any]


@dataclass(frozen=True, slots=True)
class Mutant:
    name: str
    patches: tuple[_Patch, ...]
    often: Mapping[str, float] | None = None  # how often what happens, where it takes a lot; else that, too, by chance
    draw: Callable[[Random], Scenario] = drawn  # by chance, the scenarios
    setting: Scenario | None = None  # in which one deviation shows it, where chance would take long

    def search(self, schedules, seed):
        with replaced(self.patches):
            if self.setting is not None:
                return exhaust(self.setting)
            return explore(schedules, seed, often=self.often, draw=self.draw)


MUTANTS = []


def _mutant(name, owner, attribute, **how):
    def add(function):
        MUTANTS.append(Mutant(name, ((owner, attribute, function),), **how))
        return function

    return add


@_mutant("stretches the lease", Lease, "extend")
def _stretched(self, sent_at, timeout, *_):
    return _extended(self, sent_at + 1.2 * timeout)


@_mutant("takes one write for proof after a silence", Lease, "extend", setting=IDLE)
def _unheard(self, sent_at, timeout, *_):
    return _extended(self, sent_at + 0.4 * timeout)


@_mutant("counts the lease from the answer", Lease, "extend", setting=IDLE)
def _from_the_answer(self, sent_at, timeout, *_):
    return _extended(self, clock.now() + 0.4 * timeout)


@_mutant("trusts the lease of a longer timeout", Lease, "limit", draw=drawn_moving)
def _unlimited(self, sent_at, timeout):
    pass


@_mutant("takes a longer timeout again", SimulatedClient, "_smallest", draw=drawn_moving)
def _last_timeout(self, session, timeout):
    return timeout


def _extended(self, until):
    if until <= self.until:
        return False
    if not self.valid:
        self._on_over()
    self.until = until
    if not self._timer.pending:
        self._arm()
    return True


@_mutant("grants by a lease that is over", Contender, "_is_proven", setting=LASTING)
def _unproven_after_wait(self, node):
    return (yield from _is_proven(self, node)) if self.session.suspect else True


@_mutant("deletes a leaving node once", Deletion, "_retry")
def _forgetful_delete(self, error):
    self._registry.deleting.pop(self)
    self._registry.discard(self.guid)
    self._done(error)


@_mutant("grants the next block of the process although the delete was lost", Registry, "_on_listed")
def _trusting_listing(self, parent, reply):
    """Take a znode for gone as soon as its delete was sent. So the next block of the process may have the lock."""
    gone = {deletion._path.rpartition("/")[2] for deletion in self.deleting if deletion._path}
    _on_listed(self, parent, reply if isinstance(reply, ZkError) else [name for name in reply if name not in gone])


@_mutant("counts a path no longer once its delete is sent", Deletion, "send")
def _uncounted_delete(self):
    self._registry.discard(self.guid)
    _send_delete(self)


@_mutant("takes an unanswered create for none when it leaves", Contender, "_withdraw")
def _hopeful_withdrawal(self):
    if self._node is None and self.guid:  # nothing there yet, or so it seems
        self._registry.discard(self.guid)
    _withdraw(self)


def _any_found(self):
    parent = self.spec.parent
    listed = yield partial(self._registry.list_names, parent, after_sync=True)
    path = listed.path_of(parent, self.guid)
    if path is None:
        return None
    self._node = yield partial(self.session.gateway.read, path)
    return self._node, listed


def _create_again_with_guid(self):
    """Take the place with the guid of the first time, as kazoo's lock has one for all its life."""
    kept = _guids.get(self)
    module = nodes
    before = module.new_guid
    if kept is not None:
        module.new_guid = lambda mark: kept
    try:
        return _begin_create(self)
    finally:
        module.new_guid = before
        _guids[self] = self.guid


_guids = {}


@_mutant("does not list again after a reconnect", Contender, "on_connected")
def _keeping_connected(self, *, resumed):
    if self._node is None or self._grant is not None:
        _connected(self, resumed=resumed)


def _watching(change):
    def watch(self, name):
        read = self._gateway.read

        def reading(path, callback, on_event=None):
            def on_read(answer):
                if change(answer) is not None:
                    callback(change(answer))

            return read(path, on_read, on_event)

        self._gateway.read = reading
        try:
            _watch(self, name)
        finally:
            del self._gateway.read

    return watch


_deaf_watch = _watching(lambda answer: None if isinstance(answer, NodeMissing) else answer)


@_mutant("takes the end of the one ahead for its turn", Predecessors, "_watch")
def _trusting(self, name):
    self._is_last = True
    _watch(self, name)


@_mutant("proves the session by a read", Gateway, "quorum_check", setting=LASTING)
def _by_read(self, paths, callback):
    sent_at = clock.now()

    def on_read(answer):
        if isinstance(answer, ZkError):
            callback(paths[0] if isinstance(answer, NodeMissing) else answer)
        else:
            self._extend_lease(sent_at)
            callback(None)

    self.read(paths[0], on_read)


def _indifferent(self, *_):
    self._outstanding = False


def _indifferent_watch(self, on_refused=None):
    pass


@_mutant("trusts a lease again that was over", Grant, "lose")
def _unlost(self, reason): ...


@_mutant("deletes no leaving node after a reconnect", Registry, "on_connected")
def _idle_deletes(self, *, resumed):
    self.heartbeat.beat()
    self.audit()


def _unheeding(self, verdict, pause, done):
    if verdict.depends_on_limit and self._limit is None:
        self._watch_limit()
    _wait_for(self, verdict, pause, done)


@_mutant("ends an idle lock without a look for new waiters", LingeringLock, "end_if_idle", often={"preempt": 0.5})
def _carefree_end(self):
    if not self.ended and not self.queue:
        self.grant_first()
        self.ended = True
        self.contender.abandon()
        self.end()


@_mutant("keeps the lock from others as long as anybody comes", LingeringLock, "ends_on_release")
def _keeping(self, spec, grant):
    return _must_end(self, spec, grant) and (not self.has_other_waiters or len(self.queue) == 1)


def _ending_with(change):
    return lambda self, checks, error, done: _end(self, change(checks), error, done)


@_mutant("does not check who keeps a reader from the lock of a reader", deadlock, "blockers", setting=NESTED["readers"])
def _seeing_one_waiter(queue, guid):
    blocked = blockers(queue, guid)
    return blocked and blocked._replace(waiters=blocked.waiters[:1])


@_mutant(
    "takes a lost reply for the end of a circle",
    Contender,
    "_give_way",
    draw=drawn_nested,
    often={"reply": 0.04, "request": 0.02, "commit": 0.05, "event": 0.05},
)
def _claiming_end(self, node, checks, error, done):
    def commit(done):
        changes = (*checks, Delete(path=node.path))
        self.session.gateway.commit(changes, lambda reply: done(None if isinstance(reply, INTERRUPTED) else reply))

    self._unwatch()
    self._predecessors.forget()
    try:
        yield commit
    except ZkError:
        yield from self.new_story()
    else:
        self._registry.discard(self.guid)
        raise error


@_mutant("believes what a holder once wrote", deadlock, "blockers", setting=NESTED["stale"])
def _believing_text(queue, guid):
    is_gone = bool(queue.children) and not any(nodes.has_guid(child.name, guid) for child in queue)
    return Blockers(queue[:1], queue[:1]) if is_gone else blockers(queue, guid)


@_mutant("gives way for an older waiter", DeadlockSearch, "_find_circle", setting=NESTED["circle"])
def _ageless(self, own, held):
    circle = yield from _find_circle(self, own, held)
    return tuple(step._replace(wait=step.wait._replace(czxid=0)) for step in circle)


@_mutant("looks for a circle before it writes", DeadlockSearch, "_search", setting=NESTED["circle"])
def _reading_first(self, held):
    node = self._contender.queued_node
    if node is None:
        return deadlock.LOOK_SOON
    wait = WaitsFor(self._contender.spec.key, self._contender.guid, node.czxid)
    circle = yield from self._find_circle(wait, {grant.path for grant in held})
    if circle:
        self._contender.give_way([check for step in circle for check in step.checks], deadlock._error(circle), int)
    with suppress(ZkError):
        yield from self._write(wait, held)
    return deadlock.LOOK_RARELY


_end, _find_circle = Contender.give_way, DeadlockSearch._find_circle
_must_end, _withdraw, _send_delete = LingeringLock.ends_on_release, Contender._withdraw, Deletion.send
_connected, _is_proven = Contender.on_connected, Contender._is_proven
_on_listed, _begin_create = Registry._on_listed, Contender._begin_create
_watch, _wait_for = Predecessors._watch, Predecessors.wait_for
MUTANTS += [
    Mutant("lists without a barrier", ((Gateway, "children_after_sync", Gateway.children),)),
    Mutant("misses a node that went before the watch", ((Predecessors, "_watch", _deaf_watch),)),
    Mutant(
        "believes in a hold without a node",
        ((Heartbeat, "_on_checked", _indifferent), (Contender, "_watch_node", _indifferent_watch)),
        setting=WAITING,
    ),
    Mutant(
        "takes any node with its guid",
        ((Contender, "_begin_create", _create_again_with_guid), (Contender, "_find", _any_found)),
        often={"fault": 0.06, "closing": 1.0, "reply": 0.1, "request": 0.3},
    ),
    Mutant(
        "misses a limit that was changed before the watch",
        ((Predecessors, "wait_for", _unheeding),),
        setting=PERMITS,
    ),
    Mutant("hands on a lock in doubt", ((LingeringLock, "may_be_lost", False),), often={"fault": 0.1}),
    Mutant("does not see who else waits", ((LingeringLock, "_watch_others", lambda self: None),), setting=LINGERING),
    Mutant("watches for others once", ((LingeringLock, "_on_children_changed", lambda self, deleted: None),)),
    Mutant(
        "forgets the waiters when a lingering lock ends", ((LingeringWaiter, "is_waiting", lambda self, lock: False),)
    ),
    Mutant(
        "ends a circle without a check",
        ((Contender, "give_way", _ending_with(lambda checks: ())),),
        setting=NESTED["stale"],
    ),
    Mutant(
        "does not check that the others still wait",
        ((Contender, "give_way", _ending_with(lambda checks: [check for check in checks if check.version >= 0])),),
        setting=NESTED["stale"],
    ),
]
