"""
Search for a deadlock that one waiter is part of, and end its wait if it is the victim; on the protocol's thread.

1. When an owner of locks has waited for another one for `deadlock_timeout`, the search writes what it waits for into
   the znodes of all these locks. So a search in any process can follow the waits.
2. Then it follows them: who holds the awaited lock, what that holder says it waits for, who holds that, and so on. The
   last owner of a circle to write sees all of it, since each writes before it reads.
3. If there is a circle, the youngest waiter deletes its znode by a transaction; if it has not, any other one does so at
   its second look. The transaction also checks that all other waiters and all holders of the circle are still there,
   unchanged. As long as a holder is ahead of a waiter, the waiter is not granted the lock. So if the transaction is
   carried out, the circle was there at that moment, and has ended with it. That of a second victim fails.

PostgreSQL looks for deadlocks after the same time: https://www.postgresql.org/docs/current/runtime-config-locks.html.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from django_zklock.core import clock
from django_zklock.core.errors import UnreadableQueue
from django_zklock.core.protocol.contender_info import ContenderInfo
from django_zklock.core.protocol.errors import DeadlockLink, LockDeadlock
from django_zklock.core.protocol.registry import ListingReply, Registry
from django_zklock.core.protocol.reply_guard import ReplyGuard
from django_zklock.core.queue.deadlock import Blockers, WaitsFor, blockers
from django_zklock.core.queue.escaping import path
from django_zklock.core.queue.nodes import Kind, Payload
from django_zklock.core.zk.errors import INTERRUPTED, Outdated, ZkError
from django_zklock.core.zk.gateway import Callback, Node
from django_zklock.core.zk.loop import NEVER
from django_zklock.core.zk.multi import Check, SetData

if TYPE_CHECKING:
    from django_zklock.core.protocol.contender import Contender
    from django_zklock.core.protocol.grant import Grant

LOOK_AFTER: Final = 0.1  # seconds from the write to the first look, in which others write that began at the same time
TRY_AGAIN: Final = 0.1  # seconds until a step is repeated, because a znode was written or created meanwhile
LOOK_SOON: Final = 1.0  # seconds between two looks while there is a circle, or no connection
LOOK_RARELY: Final = 5.0  # seconds between the first two other looks; then twice as many each time
LONGEST_PAUSE: Final = 40.0  # seconds between two looks
MOST: Final = 100  # locks in one write, holders of a lock that are read, and waits that are followed

_Story: TypeAlias = Generator[Callable[[Callback[Any]], object], Any, float | None]
"""Yields requests, and is sent the replies. Returns the seconds to the next step; None: there is none."""


class _Step(NamedTuple):
    """One step of a circle: a waiter, and the holder that it waits for, whose owner waits next."""

    wait: WaitsFor
    holder: ContenderInfo
    checks: tuple[Check, ...]  # that the waiter still waits for the holder


class DeadlockSearch:
    """The search of one contender. It ends with the wait, or if its owner holds no other lock."""

    def __init__(self, contender: Contender, held: Callable[[], Sequence[Grant]], since: float) -> None:
        self._contender = contender
        self._session = contender.session
        self._held = held
        self._seen = 0  # how many looks in a row have seen a circle
        self._pause = LOOK_RARELY / 2  # seconds between the last two looks
        self._written: object = None  # the wait that was written, and into which znodes
        self._guard = ReplyGuard(contender.spec.key, lambda error: self.stop(), contender.caller.about)
        self._is_over = False
        self._timer = NEVER
        timeout = self._session.options.deadlock_timeout
        if timeout is not None:
            self._call_later(max(0.0, since + timeout - clock.now()))

    def stop(self) -> None:
        """Send nothing more, and ignore the replies that are outstanding."""
        self._is_over = True
        self._timer.cancel()

    def _call_later(self, seconds: float) -> None:
        if not self._is_over:  # the last step may have ended the wait
            begin = partial(self._guard.run, lambda: self._proceed(self._search(), None))
            self._timer = self._session.loop.call_later(seconds, begin)

    def _proceed(self, story: _Story, reply: object) -> None:
        """Send the next request of the story, or wait for the next one."""
        if self._is_over or isinstance(reply, INTERRUPTED):
            self._call_later(LOOK_SOON)
            return
        try:
            request = story.send(reply)
        except StopIteration as end:
            if end.value is not None:
                self._call_later(end.value)
        else:
            request(self._guard.wrap(partial(self._proceed, story)))

    def _search(self) -> _Story:
        contender = self._contender
        grants = self._held()[:MOST]
        if not grants:
            return None
        contender.admit_now()
        node = contender.queued_node
        if node is None:
            return TRY_AGAIN if self._session.connected else LOOK_SOON
        wait = WaitsFor(contender.spec.key, contender.guid, node.czxid)
        if self._written != (wait, grants):
            error = yield from self._write(wait, grants)
            self._written = (wait, grants) if error is None else None
            return LOOK_AFTER if error is None else TRY_AGAIN if isinstance(error, Outdated) else LOOK_SOON
        circle = yield from self._find_circle(wait)
        self._seen = self._seen + 1 if circle else 0
        is_youngest = all(step.wait.czxid <= wait.czxid for step in circle)
        if circle and (is_youngest or self._seen > 1):  # it may be paused, or not have seen the whole circle
            contender.end_deadlock([check for step in circle for check in step.checks], _error(circle))
            return TRY_AGAIN  # a holder that has written its znode meanwhile makes a check fail
        self._pause = LOOK_RARELY if circle else min(2 * self._pause, LONGEST_PAUSE)
        return LOOK_SOON if circle else self._pause

    def _write(self, wait: WaitsFor, grants: Sequence[Grant]) -> Generator[Any, Any, ZkError | None]:
        """Write into the znodes of these locks what their owner waits for. Return the error, if any."""
        writes: list[SetData] = []
        for grant in grants:
            grant.tells_wait = True
        held: dict[str, Node] = yield partial(self._session.gateway.read_all, [grant.path for grant in grants])
        for node in held.values():
            payload = Payload.decode(node.data)
            if payload is not None:
                data = replace(payload, waits_for=wait.fields()).encode()
                writes.append(SetData(path=node.path, data=data, version=node.version))
        return (yield partial(self._session.gateway.commit, writes)) if writes else None

    def _find_circle(self, own: WaitsFor) -> Generator[Any, Any, tuple[_Step, ...]]:
        """Follow the waits from this one. Return the steps back to a lock of its owner; none if there is no way."""
        list_names, gateway = self._session.attached(Registry).list_names, self._session.gateway
        waits: deque[tuple[WaitsFor, tuple[_Step, ...]]] = deque([(own, ())])
        followed = {own.guid}
        while waits:
            wait, steps = waits.popleft()
            parent = path(self._session.options.base, wait.key)
            blocked = _blockers((yield partial(list_names, parent, after_sync=True)), wait)
            paths = [f"{parent}/{child.name}" for child in blocked.holders[:MOST]] if blocked is not None else []
            held: dict[str, Node] = (yield partial(gateway.read_all, paths)) if paths else {}
            if blocked is not None and blocked.waiters[0].kind is Kind.READ:
                # A writer may have become a reader before it was read. Now its marker shows that.
                blocked = _blockers((yield partial(list_names, parent)), wait)
            for child in blocked.holders if blocked is not None else ():
                node = held.get(f"{parent}/{child.name}")
                following = None if node is None else WaitsFor.decode(node.data)
                if blocked is None or node is None or following is None:
                    continue
                waiters = (Check(path=f"{parent}/{waiter.name}") for waiter in blocked.waiters)
                checks = (Check(path=node.path, version=node.version), *waiters)
                step = _Step(wait, ContenderInfo.from_node(wait.key, child, node), checks)
                if following.guid == own.guid:
                    return (*steps, step)
                if following.guid not in followed and len(followed) < MOST:
                    followed.add(following.guid)
                    waits.append((following, (*steps, step)))
        return ()


def _blockers(reply: ListingReply, wait: WaitsFor) -> Blockers | None:
    try:
        return None if isinstance(reply, ZkError) else blockers(reply.queue, wait.guid)
    except UnreadableQueue:
        return None


def _error(circle: Sequence[_Step]) -> LockDeadlock:
    """Return the error of the victim, which takes the first step of the circle."""
    links = [
        DeadlockLink(before.holder, before.wait.key, step.wait.key, before.holder.template, step.holder.template)
        for before, step in zip((circle[-1], *circle), circle, strict=False)
    ]
    key = circle[0].wait.key
    text = (
        f"The wait for the lock {key!r} was ended, as it was part of a deadlock. {' '.join(map(str, links))} Acquire "
        "these locks in the same order everywhere. Or try again after the release of all your locks."
    )
    error = LockDeadlock(text, lock=key, ahead=circle[0].holder)
    error.circle = tuple(links)
    return error
