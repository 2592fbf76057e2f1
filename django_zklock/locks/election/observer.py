"""
Read who leads, now or at each change, without being a candidate.

The first contender in the queue is the leader: ZooKeeper has granted it the lock. Only the leader itself knows whether
it has received the grant, and whether its lease is still valid.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TypeAlias, TypeGuard, TypeVar

from django_zklock import clock
from django_zklock.exceptions import UnreadableQueue, ZkLockError, ZooKeeperUnavailable
from django_zklock.execution.owner import running_loop
from django_zklock.execution.waiters import Awaited, TaskWaiter, ThreadWaiter, at_a_time, run
from django_zklock.locks.protocol.registry import Registry
from django_zklock.locks.protocol.replies import ReplyGuard
from django_zklock.locks.queue_reader import ContenderInfo, contenders, read_queue
from django_zklock.locks.validation import check_no_running_loop
from django_zklock.queue import order
from django_zklock.queue.nodes import Child
from django_zklock.zk import process
from django_zklock.zk.client import Watch
from django_zklock.zk.errors import NodeMissing, OutcomeUnknown, SessionGone, ZkError
from django_zklock.zk.gateway import Gateway, NamesReply, NodeReply, WriteReply
from django_zklock.zk.loop import Timer
from django_zklock.zk.session import SessionObserver

_Value = TypeVar("_Value")

READ_AGAIN = 5.0
"""Seconds between two reads if this account may not create the directory to be watched: the only case of polling."""


class LeaderObserver:
    """The methods of a `Leader` that only read the queue. Any thread may call them."""

    def __init__(self) -> None:
        self._stopping = False  # final; set before the watches are stopped
        self._watches: dict[LeaderWatch, None] = {}  # changed by single operations only

    def _where(self) -> tuple[str, str]:
        """Return the key and the path of its directory."""
        raise NotImplementedError

    @property
    def stopping(self) -> bool:
        """Whether `stop` was called."""
        return self._stopping

    def _stop_observing(self) -> None:
        self._stopping = True
        for watch in list(self._watches):
            watch.stop()

    def current_leader(self) -> ContenderInfo | None:
        """Return the current leader, whichever process it is, or None. Raises `ZooKeeperUnavailable`."""
        check_no_running_loop("current_leader", "await leader.acurrent_leader()")
        key, parent = self._where()
        found = run(read_queue(process.current(), key, parent, ThreadWaiter(), most=1))
        return found[0] if found else None

    async def acurrent_leader(self) -> ContenderInfo | None:
        """Return the current leader, as `current_leader` does."""
        key, parent = self._where()
        found = await Awaited(read_queue(process.current(), key, parent, TaskWaiter(), most=1))
        return found[0] if found else None

    def candidates(self) -> tuple[ContenderInfo, ...]:
        """Return the leader and the candidates behind it, in order, the first fifty. Raises `ZooKeeperUnavailable`."""
        check_no_running_loop("candidates", "await leader.acandidates()")
        return contenders(*self._where())

    async def acandidates(self) -> tuple[ContenderInfo, ...]:
        """Return the leader and the candidates behind it, as `candidates` does."""
        key, parent = self._where()
        return await Awaited(read_queue(process.current(), key, parent, TaskWaiter()))

    def observe(self, timeout: float | None = None) -> Iterator[ContenderInfo | None]:
        """
        Yield the leader, or None, and then each change, for at most `timeout` seconds (None: until `stop`).

        A watch reports each change, so nothing is sent while nothing changes. This continues when the connection or the
        session is lost; while ZooKeeper is away, nothing is yielded. A leader that led only between two reads is left
        out.
        """
        check_no_running_loop("observe", "async for ... in leader.aobserve()")
        with self._watch() as watch:
            if not self._stopping:
                yield from watch.follow(timeout)

    async def aobserve(self, timeout: float | None = None) -> AsyncIterator[ContenderInfo | None]:
        """Yield what `observe` does; waiting needs no thread."""
        with self._watch() as watch:
            if not self._stopping:
                async for candidate in watch.afollow(timeout):
                    yield candidate

    @contextlib.contextmanager
    def _watch(self) -> Iterator[LeaderWatch]:
        watch = LeaderWatch(*self._where())
        self._watches[watch] = None
        try:
            yield watch
        finally:
            watch.stop()
            self._watches.pop(watch, None)


# --- the watch ----------------------------------------------------------------------------------------------------


class _End:
    """The message that ends the iteration of an observer."""


_Message: TypeAlias = "ContenderInfo | ZkLockError | _End | None"


def _is_end(message: _Message) -> bool:
    if isinstance(message, ZkLockError):
        raise message
    return isinstance(message, _End)


class LeaderWatch(SessionObserver):
    """
    Reports the leader, and each change, to one observer; on the protocol's thread.

    It watches the znode of the leader. If the queue is empty, it watches the children of the directory. A missing
    directory has no children to watch, and a watch on its existence would stay on the server for ever (ZOOKEEPER-442).
    So the directory is created, and deleted at the end if no candidate came.
    """

    def __init__(self, key: str, parent: str) -> None:
        self._session = process.current()
        self._key = key
        self._parent = parent
        self._replies = ReplyGuard(key, self._on_failure)
        self._send: Callable[[_Message], object] | None = None
        self._ended = False
        self._reported: list[int | None] = []  # the token in the last report, None for no leader; empty at first
        self._watch: Watch | None = None
        self._timer: Timer | None = None
        self._created = False  # the directory, and no candidate has come since

    # --- from any thread ----------------------------------------------------------------------------------------

    def follow(self, timeout: float | None) -> Iterator[ContenderInfo | None]:
        """Yield the leader, then each change, for at most `timeout` seconds (None: until `stop`)."""
        messages: queue.SimpleQueue[_Message] = queue.SimpleQueue()
        deadline = None if timeout is None else clock.now() + timeout
        self._session.post(self._begin, messages.put)
        try:
            while True:
                left = _left(deadline)
                try:
                    message = messages.get(timeout=at_a_time(left))
                except queue.Empty:
                    if left == 0:
                        return
                    continue
                if _is_end(message):
                    return
                yield message  # type: ignore[misc]
        finally:
            self.stop()

    async def afollow(self, timeout: float | None) -> AsyncIterator[ContenderInfo | None]:
        """Yield what `follow` does; waiting needs no thread."""
        loop = running_loop()
        messages: asyncio.Queue[_Message] = asyncio.Queue()
        deadline = None if timeout is None else clock.now() + timeout

        def send(message: _Message) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed, so there is no observer
                loop.call_soon_threadsafe(messages.put_nowait, message)

        self._session.post(self._begin, send)
        try:
            while True:
                message = await asyncio.wait_for(messages.get(), _left(deadline))
                if _is_end(message):
                    return
                yield message  # type: ignore[misc]
        except asyncio.TimeoutError:
            return
        finally:
            self.stop()

    def stop(self) -> None:
        """End, and leave no watch on the server; the iteration of the observer ends."""
        self._session.post(self._end, _End())

    # --- begin and end --------------------------------------------------------------------------------------------

    def _begin(self, send: Callable[[_Message], object]) -> None:
        if self._ended:
            send(_End())  # stopped before it began
            return
        self._send = send
        if self._session.closing:
            self.on_closed()
            return
        self._session.observers[self] = None
        if self._session.connected:
            self._read_queue()

    def _end(self, last: _Message) -> None:
        self._ended = True
        send, self._send = self._send, None
        if send is None:
            return
        self._replies.new_generation()
        self._cancel()
        self._session.observers.pop(self, None)
        if self._created:
            # This ends the watch on it, too. If a candidate has just come, the directory is not empty, and stays.
            self._gateway.delete(self._parent, lambda answer: None)
        send(last)

    def _cancel(self) -> None:
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.cancel()
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()

    @property
    def _gateway(self) -> Gateway:
        return self._session.attached(Registry).gateway

    def _on_failure(self, error: Exception) -> None:
        self._end(ZkLockError(f"Observing the leader of {self._key!r} failed: {error!r}.", lock=self._key))

    # --- the leader -----------------------------------------------------------------------------------------------

    def _read_queue(self) -> None:
        if self._send is None:
            return
        self._replies.new_generation()
        self._cancel()
        self._gateway.children(self._parent, self._replies.wrap(self._on_listed))

    def _on_listed(self, answer: NamesReply) -> None:
        if isinstance(answer, NodeMissing):
            self._report(None)
            self._gateway.ensure_path(self._parent, self._replies.wrap(self._on_created))
        elif self._is_answered(answer) and not self._found_leader(answer):
            self._watch_directory()

    def _on_created(self, answer: WriteReply) -> None:
        if isinstance(answer, (OutcomeUnknown, SessionGone)):
            return  # the queue is read again after the reconnect
        if isinstance(answer, ZkError):
            self._timer = self._session.loop.call_later(READ_AGAIN, self._read_queue)  # this account may only read
            return
        self._created = True
        self._watch_directory()

    def _watch_directory(self) -> None:
        """Watch the empty queue, and read it once more: a candidate may have come since."""
        self._report(None)
        self._watch = self._gateway.children(
            self._parent,
            self._replies.wrap(self._on_listed_again),
            self._replies.wrap(lambda deleted: self._read_queue()),
        )

    def _on_listed_again(self, answer: NamesReply) -> None:
        if isinstance(answer, NodeMissing):
            self._read_queue()
        elif self._is_answered(answer):
            self._found_leader(answer)

    def _found_leader(self, names: list[str]) -> bool:
        """Watch the first contender; return whether the search is over."""
        try:
            contenders = order.ordered(names)
        except UnreadableQueue as error:
            error.lock = self._key
            self._end(error)
            return True
        if contenders:
            self._created = False
            self._watch_leader(contenders[0])
        return bool(contenders)

    def _watch_leader(self, child: Child) -> None:
        self._cancel()

        def on_read(answer: NodeReply) -> None:
            if isinstance(answer, NodeMissing):
                self._read_queue()
            elif self._is_answered(answer):
                self._report(ContenderInfo.from_node(self._key, child, answer))

        def on_event(deleted: bool) -> None:
            if deleted:
                self._read_queue()
            else:
                self._watch_leader(child)  # only its data changed

        path = f"{self._parent}/{child.name}"
        self._watch = self._gateway.read(path, self._replies.wrap(on_read), self._replies.wrap(on_event))

    def _is_answered(self, answer: _Value | ZkError) -> TypeGuard[_Value]:
        """Return whether there is an answer. A lost one is requested again after the reconnect; a refusal ends this."""
        if isinstance(answer, ZkError) and not isinstance(answer, (OutcomeUnknown, SessionGone)):
            answer.lock = answer.lock or self._key
            self._end(answer)
        return not isinstance(answer, ZkError)

    def _report(self, found: ContenderInfo | None) -> None:
        token = None if found is None else found.token
        if self._send is not None and self._reported != [token]:
            self._reported = [token]
            self._send(found)

    # --- the session's events -------------------------------------------------------------------------------------

    def on_connected(self, *, resumed: bool) -> None:
        """Read the queue again: the watch has ended with the connection."""
        self._read_queue()

    def on_session_lost(self) -> None:
        """Wait for the next session."""
        self._replies.new_generation()
        self._cancel()

    def on_closed(self) -> None:
        """End: this session will report nothing more."""
        self._end(ZooKeeperUnavailable("The ZooKeeper session of this process was closed.", lock=self._key))


def _left(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.0, deadline - clock.now())
