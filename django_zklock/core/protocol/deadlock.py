"""
Search for a deadlock that one waiter is part of, and end its wait if it is the victim; on the protocol's thread.

1. When an owner of locks has waited for another one for `deadlock_timeout`, the search writes what it waits for into
   the znodes of all these locks. So a search in any process can follow the waits.
2. Then it follows them: who holds the awaited lock, what that holder says it waits for, who holds that, and so on, to a
   lock of its own owner. The last owner of a circle to write sees all of it, since each writes before it reads. A lock
   that another thread may release is part of no circle: its znode says so.
3. Then the youngest waiter deletes its znode by a transaction; if it has not, any other one does so at its second look.
   The transaction also checks that all other waiters and all holders of the circle are still there, unchanged. As long
   as a holder is ahead of a waiter, the waiter is not granted the lock. So if the transaction is carried out, the
   circle was there at that moment, and has ended with it. That of a second victim fails.

A process that was killed has znodes until its session is over. Until then, it counts as any other.

PostgreSQL looks for deadlocks after the same time: https://www.postgresql.org/docs/current/runtime-config-locks.html.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from django_zklock.core import clock
from django_zklock.core.errors import UnreadableQueue
from django_zklock.core.log import Logger
from django_zklock.core.protocol.contender_info import ContenderInfo
from django_zklock.core.protocol.errors import DeadlockLink, LockDeadlock
from django_zklock.core.protocol.registry import ListedNames, Registry
from django_zklock.core.protocol.story import Story, StoryRun
from django_zklock.core.queue.deadlock import WaitsFor, blockers
from django_zklock.core.queue.escaping import path
from django_zklock.core.queue.nodes import MAX_PAYLOAD, Child, Payload
from django_zklock.core.zk.errors import NodeMissing, Outdated, ZkError
from django_zklock.core.zk.gateway import Callback, Node
from django_zklock.core.zk.loop import NEVER
from django_zklock.core.zk.multi import Check, SetData

if TYPE_CHECKING:
    from django_zklock.core.protocol.contender import Contender, HeldGrants
    from django_zklock.core.protocol.grant import Grant

logger = Logger("django_zklock.locks")

LOOK_AFTER: Final = 0.1  # seconds from the write to the first look, in which others write that began at the same time
TRY_AGAIN: Final = 0.1  # seconds until a step is repeated, because a znode was written or created meanwhile
LOOK_SOON: Final = 1.0  # seconds between the first two looks that see a circle, if there is a younger waiter in it
LOOK_RARELY: Final = 5.0  # seconds between the first two other looks; then twice as many each time
LONGEST_PAUSE: Final = 40.0  # seconds between two looks
MOST: Final = 10_000  # znodes that one look reads


class _Step(NamedTuple):
    """One step of a circle: a waiter, and the holder that it waits for, whose owner waits next."""

    wait: WaitsFor
    child: Child
    node: Node  # of the holder
    checks: tuple[Check, ...]  # that the waiter still waits for the holder

    @property
    def holder(self) -> ContenderInfo:
        """The description of the holder."""
        return ContenderInfo.from_node(self.wait.key, self.child, self.node)


class DeadlockSearch:
    """The search of one contender. It ends with the wait."""

    def __init__(self, contender: Contender, held: HeldGrants, since: float) -> None:
        self._contender = contender
        self._session = contender.session
        self._registry = contender.session.attached(Registry)
        self._held = held
        self._begins_at = since + self._session.options.tell_wait_after  # on clock.now()
        self._written: object = None  # the contender that waits, and the locks into whose znodes this was written
        self._seen: list[str] = []  # the guids of the waiters in the circle that the last look has seen
        self._timer = NEVER
        self._run = StoryRun(self._session, self._searches)
        self._run.begin()

    def stop(self) -> None:
        """Send nothing more, and ignore the replies that are outstanding."""
        self._run.end()
        self._timer.cancel()

    def _searches(self) -> Story[None]:
        yield partial(self._sleep, self._begins_at - clock.now())
        rest = LOOK_RARELY
        while held := self._held():
            pause = yield from self._search(held)
            if pause is None:
                pause, rest = rest, min(2 * rest, LONGEST_PAUSE)
            yield partial(self._sleep, pause)

    def _sleep(self, seconds: float, done: Callback[None]) -> None:
        self._timer.cancel()
        self._timer = self._session.loop.call_later(max(0.0, seconds), partial(done, None))

    def _search(self, held: Mapping[Grant, bool]) -> Story[float | None]:
        """Write and look once. Return the seconds until the next time; None if there is no reason for one."""
        contender = self._contender
        contender.admit_now()
        node = contender.queued_node
        if node is None:
            return TRY_AGAIN
        wait = WaitsFor(contender.spec.key, contender.guid, node.czxid)
        if self._written != (wait, held):
            return (yield from self._tell(wait, held))
        lasting = {grant.path for grant, may_end in held.items() if not may_end}
        if not lasting or self._session.options.deadlock_timeout is None:
            return None
        return (yield from self._look(wait, lasting))

    def _tell(self, wait: WaitsFor, held: Mapping[Grant, bool]) -> Story[float]:
        """Write what the contender waits for. Return the seconds until the first look."""
        try:
            yield from self._write(wait, held)
        except (NodeMissing, Outdated):
            return TRY_AGAIN
        except ZkError as error:  # this search may still see a circle; no other one does
            logger.warning(
                "lock %r: others do not see that its waiter holds locks, and a deadlock may last: %s",
                wait.key,
                error,
                about=self._contender.caller.about,
                extra={"lock": wait.key},
            )
        self._written = wait, held
        return LOOK_AFTER

    def _write(self, wait: WaitsFor, held: Mapping[Grant, bool]) -> Story[None]:
        """Write into the znodes of these locks what their owner waits for."""
        gateway = self._session.gateway
        deadline = self._contender.deadline
        now = gateway.clock.now()
        writes: list[SetData] = []
        for grant in held:
            grant.tells_wait = True
        nodes: dict[str, Node] = yield partial(gateway.read_all, [grant.path for grant in held])
        if deadline is not None and now is not None:
            wait = wait._replace(until=round((now + deadline - clock.now()) * 1000))
        for grant, may_end in held.items():
            node = nodes.get(grant.path)
            payload = None if node is None else Payload.decode(node.data)
            if node is not None and payload is not None:
                data = replace(payload, waits_for=wait._replace(may_end=int(may_end)).fields()).encode()
                writes.append(SetData(path=node.path, data=data, version=node.version))
        size = self._session.options.jute_maxbuffer // (2 * MAX_PAYLOAD)
        for start in range(0, len(writes), size):
            yield partial(gateway.commit, writes[start : start + size])

    def _look(self, wait: WaitsFor, held: Collection[str]) -> Story[float | None]:
        """Look for a circle back to a lock in `held`, and end it."""
        circle = yield from self._find_circle(wait, held)
        before, self._seen = self._seen, [step.wait.guid for step in circle]
        if not circle:
            return None
        youngest = max(step.wait.czxid for step in circle)
        if wait.czxid < youngest and self._seen != before:  # the youngest one may be paused, or not have seen it
            return LOOK_SOON
        error = _error(circle)
        checks = [check for step in circle for check in step.checks]
        self._contender.give_way(checks, error, partial(self._report, error))
        return TRY_AGAIN  # a holder that has written its znode meanwhile makes a check fail

    def _report(self, error: LockDeadlock) -> None:
        about, key = self._contender.caller.about, self._contender.spec.key
        logger.warning("a deadlock has ended: %s", error, about=about, extra={"lock": key})

    def _find_circle(self, own: WaitsFor, held: Collection[str]) -> Story[tuple[_Step, ...]]:
        """Follow the waits from this one. Return the steps back to a lock in `held`; none if there is no way."""
        clock_of_server, left = self._session.gateway.clock, MOST
        waits: deque[tuple[WaitsFor, tuple[_Step, ...]]] = deque([(own, ())])
        followed = {own[:2]}
        while waits and left > 0:
            wait, steps = waits.popleft()
            blocked, nodes = yield from self._read_blockers(wait, left)
            left -= len(nodes)
            for child, node in nodes.items():
                way = (*steps, _Step(wait, child, node, (Check(path=node.path, version=node.version), *blocked)))
                if node.path in held:
                    return way
                following = _lasting_wait(node, clock_of_server.latest())
                if following is not None and following[:2] not in followed:
                    followed.add(following[:2])
                    waits.append((following, way))
        return ()

    def _read_blockers(self, wait: WaitsFor, most: int) -> Story[tuple[list[Check], dict[Child, Node]]]:
        """Return checks of the waiters that are blocked, and at most so many holders that block them."""
        parent = path(self._session.options.base, wait.key)
        try:
            listed: ListedNames = yield partial(self._registry.list_names, parent, after_sync=True)
            blocked = blockers(listed.queue, wait.guid)
        except (ZkError, UnreadableQueue):
            blocked = None
        if blocked is None:
            return [], {}
        paths = {f"{parent}/{child.name}": child for child in blocked.holders[:most]}
        nodes: dict[str, Node] = yield partial(self._session.gateway.read_all, list(paths))
        checks = [Check(path=f"{parent}/{waiter.name}") for waiter in blocked.waiters]
        return checks, {child: nodes[path] for path, child in paths.items() if path in nodes}


def _lasting_wait(node: Node, now: float | None) -> WaitsFor | None:
    """Return the wait that a holder's znode names, if it may be part of a circle."""
    # Most holders do not wait, and to decode thousands of payloads takes long.
    wait = WaitsFor.decode(node.data) if b'"waits_for"' in node.data else None
    return None if wait is None or wait.may_end or wait.is_over(now) else wait


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
