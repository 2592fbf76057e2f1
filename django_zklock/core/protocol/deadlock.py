"""
Search for a deadlock that one waiter is part of, and end its wait if it is the victim; on the protocol's thread.

1. When an owner of locks has waited for another one for `deadlock_timeout`, the search writes what it waits for into
   the znodes of all these locks. So a search in any process can follow the waits.
2. Then it follows them: who holds the awaited lock, what that holder says it waits for, who holds that, and so on, to a
   lock of its own owner. The last owner of a circle to write sees all of it, since each writes before it reads. A lock
   that another thread may release is part of no circle: its znode says so.
3. A process that is dead, or cut off, has znodes until its session is over. So a wait counts only if its text was
   written after the youngest wait of the circle had begun. Otherwise the search asks that process to write it again, by
   a write to the znode of its waiter. Without an answer, the circle counts if it is still there when the session would
   have ended.
4. Then the youngest waiter deletes its znode by a transaction; if it has not, any other one does so at its second look.
   The transaction also checks that all other waiters and all holders of the circle are still there, unchanged. As long
   as a holder is ahead of a waiter, the waiter is not granted the lock. So if the transaction is carried out, the
   circle was there at that moment, and has ended with it. That of a second victim fails.

PostgreSQL looks for deadlocks after the same time: https://www.postgresql.org/docs/current/runtime-config-locks.html.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from django_zklock.core import clock
from django_zklock.core.errors import UnreadableQueue
from django_zklock.core.log import Logger
from django_zklock.core.protocol.contender_info import ContenderInfo
from django_zklock.core.protocol.errors import DeadlockLink, LockDeadlock
from django_zklock.core.protocol.registry import ListedNames, Registry
from django_zklock.core.protocol.story import Request, Story, StoryRun
from django_zklock.core.queue.deadlock import Blockers, WaitsFor, blockers
from django_zklock.core.queue.escaping import path
from django_zklock.core.queue.nodes import MAX_PAYLOAD, Child, Kind, Payload
from django_zklock.core.zk.errors import NodeMissing, Outdated, ZkError
from django_zklock.core.zk.gateway import Callback, Node
from django_zklock.core.zk.loop import NEVER
from django_zklock.core.zk.multi import Check, SetData

if TYPE_CHECKING:
    from django_zklock.core.protocol.contender import Contender
    from django_zklock.core.protocol.grant import Grant

logger = Logger("django_zklock.locks")

LOOK_AFTER: Final = 0.1  # seconds from the write to the first look, in which others write that began at the same time
TRY_AGAIN: Final = 0.1  # seconds until a step is repeated, because a znode was written or created meanwhile
LOOK_SOON: Final = 1.0  # seconds between two looks while there is a circle, or no connection
LOOK_RARELY: Final = 5.0  # seconds between the first two other looks; then twice as many each time
LONGEST_PAUSE: Final = 40.0  # seconds between two looks
MOST: Final = 10_000  # znodes that one look reads
FAR: Final = 30  # steps of a chain that the first look follows in any case


class _Step(NamedTuple):
    """One step of a circle: a waiter, and the holder that it waits for, whose owner waits next."""

    wait: WaitsFor
    holder: ContenderInfo
    checks: tuple[Check, ...]  # that the waiter still waits for the holder


class DeadlockSearch:
    """The search of one contender. It ends with the wait."""

    def __init__(self, contender: Contender, held: Callable[[], Mapping[Grant, bool]], since: float) -> None:
        self._contender = contender
        self._session = contender.session
        self._registry = contender.session.attached(Registry)
        self._held = held
        self._has_looked = False
        self._circle: tuple[str, ...] = ()  # the guids of the waiters in the circle that the last look has seen
        self._seen = 0  # how many looks in a row have seen it
        self._seen_since = 0.0  # on clock.now()
        self._has_asked = False  # the other processes of that circle, whether they are alive
        self._pause = 0.0  # seconds before the last look, if there was no reason for it
        self._written: object = None  # the contender that waits, and the locks into whose znodes this was written
        self._is_limited = False  # and that was logged
        self._next = since + self._session.options.tell_wait_after  # search, on clock.now()
        self._timer = NEVER
        self._run = StoryRun(self._session, self._searches)
        self._run.begin()

    def stop(self) -> None:
        """Send nothing more, and ignore the replies that are outstanding."""
        self._run.end()
        self._timer.cancel()

    def answer(self) -> None:
        """Write again what the contender waits for: another process asks whether this one is alive."""
        self._written, self._next = None, 0.0
        self._run.restart()

    def _searches(self) -> Story[None]:
        while True:
            yield self._sleep
            pause = yield from self._search()
            self._next = clock.now() + pause

    def _sleep(self, done: Callback[None]) -> None:
        self._timer.cancel()
        self._timer = self._session.loop.call_later(max(0.0, self._next - clock.now()), partial(done, None))

    def _search(self) -> Story[float]:
        """Write and look once. Return the seconds until the next time."""
        contender = self._contender
        held = self._held()
        if not held:
            return self._longer(LOOK_SOON)  # the owner may be about to record the first of several locks
        contender.admit_now()
        node = contender.queued_node
        if node is None:
            return TRY_AGAIN if self._session.connected else LOOK_SOON
        wait = WaitsFor(contender.spec.key, contender.guid, node.czxid)
        if self._written != (wait, held):
            return (yield from self._tell(wait, held))
        lasting = {grant.path for grant, may_end in held.items() if not may_end}
        if not lasting or self._session.options.deadlock_timeout is None:
            return self._longer(LOOK_SOON)
        return (yield from self._look(wait, lasting))

    def _tell(self, wait: WaitsFor, held: Mapping[Grant, bool]) -> Story[float]:
        """Write what the contender waits for. Return the seconds until the first look."""
        try:
            yield from self._write(wait, held)
        except Outdated:
            return TRY_AGAIN
        except NodeMissing:
            return LOOK_SOON
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

    def _look(self, wait: WaitsFor, held: Collection[str]) -> Story[float]:
        """Look for a circle back to a lock in `held`, and end it."""
        circle = yield from self._find_circle(wait, held)
        self._has_looked = True
        self._note(tuple(step.wait.guid for step in circle))
        if not circle:
            return self._longer(LOOK_RARELY)
        self._pause = 0.0
        youngest = max(step.wait.czxid for step in circle)
        if wait.czxid < youngest and self._seen == 1:  # the youngest one may be paused, or not have seen the circle
            return LOOK_SOON
        silent = self._silent(circle, youngest)
        if silent and clock.now() - self._seen_since < self._longest_session(circle):
            yield from self._ask(silent)
            return min(LOOK_AFTER * self._seen, LOOK_SOON)
        self._contender.end_deadlock([check for step in circle for check in step.checks], _error(circle))
        return TRY_AGAIN  # a holder that has written its znode meanwhile makes a check fail

    def _silent(self, circle: Sequence[_Step], youngest: int) -> list[_Step]:
        """Return the steps whose processes may be dead: they have written nothing since the youngest wait began."""
        guids = self._registry.guids
        return [step for step in circle if step.wait.guid not in guids and step.wait.zxid < youngest]

    def _longest_session(self, circle: Sequence[_Step]) -> float:
        """Return the seconds after which the sessions of dead processes have ended."""
        timeout = max(step.holder.session_timeout or self._session.timeout for step in circle[:-1])
        return 2 * timeout  # at most, with the ticks of a server

    def _longer(self, least: float) -> float:
        self._pause = min(max(2 * self._pause, least), LONGEST_PAUSE)
        return self._pause

    def _note(self, circle: tuple[str, ...]) -> None:
        if circle != self._circle:
            self._circle = circle
            self._seen = 0
            self._seen_since = clock.now()
            self._has_asked = False
        self._seen += 1

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
        wait = wait._replace(zxid=gateway.newest_zxid)
        for grant, may_end in held.items():
            node = nodes.get(grant.path)
            payload = None if node is None else Payload.decode(node.data)
            if node is not None and payload is not None:
                data = replace(payload, waits_for=wait._replace(may_end=int(may_end)).fields()).encode()
                writes.append(SetData(path=node.path, data=data, version=node.version))
        size = self._session.options.jute_maxbuffer // (2 * MAX_PAYLOAD)
        for start in range(0, len(writes), size):
            yield partial(gateway.commit, writes[start : start + size])

    def _find_circle(self, own: WaitsFor, held: Collection[str]) -> Story[tuple[_Step, ...]]:
        """
        Follow the waits from this one. Return the steps back to a lock in `held`; none if there is no way.

        The owners of a long chain look at about the same time. If each looked at all of it, the requests would be the
        square of their number. So the first look ends far away at a younger waiter. The youngest one looks at all.
        """
        gateway, left = self._session.gateway, MOST
        waits: deque[tuple[WaitsFor, tuple[_Step, ...]]] = deque([(own, ())])
        followed = {own[:2]}
        while waits and left:
            wait, steps = waits.popleft()
            blocked, nodes = yield from self._read_blockers(wait, left)
            left -= len(nodes)
            for child, node in nodes.items():
                is_own = node.path in held
                following = None if is_own else _lasting_wait(node, gateway.clock.latest())
                if not is_own and (following is None or following[:2] in followed):
                    continue
                checks = (Check(path=node.path, version=node.version), *blocked)
                step = _Step(wait, ContenderInfo.from_node(wait.key, child, node), checks)
                if following is None:
                    return (*steps, step)
                if len(steps) >= FAR and self._ends_at(following, own):
                    continue
                followed.add(following[:2])
                waits.append((following, (*steps, step)))
        if not left:
            self._report_limit(own.key)
        return ()

    def _ends_at(self, other: WaitsFor, own: WaitsFor) -> bool:
        """Return True if this look ends at another waiter, which looks at the rest of a long chain itself."""
        return not self._has_looked and other.czxid > own.czxid

    def _report_limit(self, key: str) -> None:
        if not self._is_limited:
            self._is_limited = True
            logger.warning(
                "lock %r: a deadlock may last, as more than %d holders may be part of it",
                key,
                MOST,
                about=self._contender.caller.about,
                extra={"lock": key},
            )

    def _read_blockers(self, wait: WaitsFor, most: int) -> Story[tuple[list[Check], dict[Child, Node]]]:
        """Return checks of the waiters that are blocked, and at most so many holders that block them."""
        parent = path(self._session.options.base, wait.key)
        list_names = partial(self._registry.list_names, parent)
        blocked = yield from _blockers(partial(list_names, after_sync=True), wait)
        if blocked is None:
            return [], {}
        paths = [f"{parent}/{child.name}" for child in blocked.holders[:most]]
        nodes: dict[str, Node] = yield partial(self._session.gateway.read_all, paths)
        if blocked.waiters[0].kind is Kind.READ:
            # A writer may have become a reader before it was read. Now its marker shows that.
            blocked = (yield from _blockers(list_names, wait)) or Blockers((), ())
        holders = [(child, nodes.get(f"{parent}/{child.name}")) for child in blocked.holders]
        checks = [Check(path=f"{parent}/{waiter.name}") for waiter in blocked.waiters]
        return checks, {child: node for child, node in holders if node is not None}

    def _ask(self, silent: Sequence[_Step]) -> Story[None]:
        """Write the znodes of these waiters, once. Their processes watch them, and write their waits again."""
        if self._has_asked:
            return
        gateway = self._session.gateway
        waiters: dict[str, Node] = yield partial(gateway.read_all, [step.checks[1].path for step in silent])
        self._has_asked = True  # first: an answer may begin this search again
        for node in waiters.values():
            gateway.write(node.path, node.data, node.version)


def _lasting_wait(node: Node, now: float | None) -> WaitsFor | None:
    """Return the wait that a holder's znode names, if it may be part of a circle."""
    # Most holders do not wait, and to decode thousands of payloads takes long.
    wait = WaitsFor.decode(node.data) if b'"waits_for"' in node.data else None
    return None if wait is None or wait.may_end or wait.is_over(now) else wait


def _blockers(list_names: Request, wait: WaitsFor) -> Story[Blockers | None]:
    try:
        listed: ListedNames = yield list_names
        return blockers(listed.queue, wait.guid)
    except (ZkError, UnreadableQueue):
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
