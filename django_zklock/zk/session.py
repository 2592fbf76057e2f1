"""
Knows the ZooKeeper session of this process: its connection, its lease, its replacement. Knows nothing of locks.

Everything here but `post`, `dispatch` and the plain attributes marked so runs on the loop's thread.
"""

from __future__ import annotations

import enum
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar, cast

from kazoo.exceptions import ConnectionLoss
from kazoo.protocol.serialization import Exists, GetACL, GetChildren, GetData, Sync, Transaction
from kazoo.protocol.states import KazooState

from django_zklock import signals
from django_zklock.queue.printable import session_hex
from django_zklock.zk import clock
from django_zklock.zk.client import Client, Options
from django_zklock.zk.errors import OutcomeUnknown, SessionGone, ZkError, failure, translate
from django_zklock.zk.lease import Activity, Lease
from django_zklock.zk.loop import Loop, Timer
from django_zklock.zk.outage import Outage
from django_zklock.zk.threads import users_thread

logger = logging.getLogger("django_zklock.zk")

BEAT_SHARE = 1 / 6  # of the negotiated timeout, between two heartbeats
STALL_SHARE = 1 / 6  # of it without any answer, and the connection is taken for dead, with some of the lease left
MAX_IN_FLIGHT = 200  # requests without an answer; further ones wait here, so that a heartbeat is never far behind
FAREWELL = 1.0  # seconds that a client which lost its connection has for a new one, to end its session on
UNCLEAR_PAUSE = 1.0  # seconds between two connections that are given up because of an unclear reply
REPLACE_AFTER = 3.0  # session timeouts without a connection, and the client is replaced by a new one


_READS = (GetData, GetChildren, Exists, GetACL, Sync)  # requests that change nothing, so that have no outcome

_Attached = TypeVar("_Attached")
_Batch: TypeAlias = Sequence[tuple[Any, Callable[[Any], None]]]  # requests that leave together, and their callbacks


class State(str, enum.Enum):
    """What is known of the connection."""

    CONNECTING = "connecting"  # no session yet
    CONNECTED = "connected"
    SUSPENDED = "suspended"  # no connection; the session may be alive
    LOST = "lost"  # the session is over

    __str__ = str.__str__


class Observer:
    """What is told of the session's changes, on the loop's thread; it does nothing about those it has no method for."""

    def on_connected(self, *, resumed: bool) -> None:
        """There is a connection; `resumed` when it is the same session as before."""

    def on_session_lost(self) -> None:
        """The session is over, and all its nodes are gone or about to go."""

    def on_closed(self) -> None:
        """This session ends for good, and no other will follow it."""

    def on_suspect(self, reason: str) -> None:
        """The session can't be vouched for at the moment."""

    def on_vouched(self) -> None:
        """A quorum has vouched for the session again, before its lease was over."""

    def on_lease_over(self) -> None:
        """The lease is over: the server may have given the locks of this session away."""


class Session:
    """
    The one connection of this process to ZooKeeper, and the session it keeps up.

    Lazily started, replaced when kazoo's thread has died or has been without a connection for too long, closed at
    orderly exit, dropped (not closed) in a forked child. It has two threads: kazoo's, which reads and writes the
    socket, and the loop, which runs the protocol.
    """

    def __init__(self, options: Options) -> None:
        self.options = options
        self.pid = os.getpid()
        self.loop = Loop("zklock-loop")
        self.lease = Lease(self.loop, self._on_lease_over)
        self.observers: dict[Observer, None] = {}  # loop thread; a dict keeps the order
        # Written by the loop's thread, read by any: each is a plain value that is replaced whole.
        self.state = State.CONNECTING
        self.session_id: int | None = None
        self.timeout = options.session_timeout  # seconds, as negotiated once connected
        self.suspect = True  # connection suspended, or the heartbeat late
        self.outage = Outage(options.hosts)
        self._client: Client | None = None
        self._leaving: Client | None = None  # which ends the session of a closed one
        self._dispatcher: Loop | None = None
        self._may_start_threads = True
        self._sent: dict[Reply, float] = {}  # requests without an answer, oldest first; when sent, on clock.now()
        self._unsent: deque[_Batch] = deque()  # requests that wait until fewer are in flight
        self._answered_at = float("-inf")  # when the last request was answered, on clock.now()
        self._activity = Activity()
        self._stall_timer: Timer | None = None
        self._replace_timer: Timer | None = None
        self._spawn_pause = 0.0
        self._leave_at = float("-inf")  # on clock.now(): when the last connection with an unclear reply was given up
        self.closing = False  # read by any thread
        self._done = threading.Event()  # set when the session is closed
        self._attached: dict[object, object] = {}

    # --- life ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the threads and begin to connect; returns at once."""
        self.loop.start()
        self.loop.post(self._spawn)

    def close(self, timeout: float, *, at_exit: bool = False) -> None:
        """
        End the session, so that all its locks are free at once; wait for that at most `timeout` seconds.

        At the exit of the process, threads that wait for a lock are left to wait: an error in each of them would only
        be noise, as they are about to end. No thread is started then, as Python refuses or forbids it. At any other
        time the threads of the session have ended when this returns in time.
        """
        if self.pid != os.getpid():
            return
        client = self._client
        self.loop.post(self._close, at_exit)
        if self._done.wait(timeout) and client is not None and not at_exit:
            client.join()
            self.loop.join()

    def forget(self) -> None:
        """Drop everything in a forked child: no thread of the parent runs here, and its socket stays the parent's."""
        self.closing = True
        if self._client is not None:
            self._client.forget_sockets()

    def post(self, call: Callable[..., object], *args: Any) -> None:
        """Have `call(*args)` run on the loop's thread; from anywhere."""
        self.loop.post(call, *args)

    def dispatch(self, call: Callable[..., object], *args: Any) -> None:
        """Run somebody else's code on a thread of its own, in order, where it can delay nothing; from anywhere."""
        self.loop.post(self._dispatch, call, *args)

    def _dispatch(self, call: Callable[..., object], *args: Any) -> None:
        if self._dispatcher is None and self._may_start_threads:
            dispatcher = Loop("zklock-signals", users_thread)
            dispatcher.start()
            self._dispatcher = dispatcher
        if self._dispatcher is not None:
            self._dispatcher.post(call, *args)

    def attached(self, kind: Callable[[Session], _Attached]) -> _Attached:
        """Return what `kind(session)` made for this session, made once."""
        if kind not in self._attached:
            self._attached[kind] = kind(self)
        return cast("_Attached", self._attached[kind])

    @property
    def connected(self) -> bool:
        """Tell whether there is a connection, as far as is known."""
        return self.state is State.CONNECTED

    @property
    def usable(self) -> bool:
        """
        Tell whether a request that is sent now would be carried out for this session.

        The client may have a new one already, of which the news is still to come.
        """
        return self.connected and self._client is not None and self._client.session_id == self.session_id

    @property
    def server(self) -> str:
        """The one server that it is connected to, as "address:port"; empty if it is to none. For any thread."""
        client = self._client
        return client.server if client is not None and self.connected else ""

    def explain(self, within: float | None = None) -> str:
        """Return a sentence that says why there was no answer, after `within` seconds of waiting. For any thread."""
        return self.outage.explain(within, self.server)

    # --- is it alive? -------------------------------------------------------------------------------------------

    def extend_lease(self, sent_at: float) -> None:
        """Take an acknowledged quorum write, sent at `sent_at` on `clock.now()`, as proof of the session."""
        heard_at = self._activity.relayed(sent_at, self.timeout)
        if self.lease.extend(sent_at, self.timeout, heard_at) and self.suspect and self.connected:
            self.suspect = False
            self._tell(lambda observer: observer.on_vouched())

    def _on_lease_over(self) -> None:
        self._tell(lambda observer: observer.on_lease_over())

    def doubt(self, reason: str) -> None:
        """Mark the session as one that can't be vouched for at the moment."""
        if not self.suspect:
            self.suspect = True
            self._tell(lambda observer: observer.on_suspect(reason))

    def last_zxid(self) -> Callable[[], int]:
        """Return what tells the last transaction that an answer named, be it seen by this connection or the next."""
        client = self._client  # not that of another session, which may be at another ensemble
        return lambda: 0 if client is None else int(client.last_zxid)

    # --- requests -----------------------------------------------------------------------------------------------

    def send(self, request: Any, callback: Callable[[Any], None], *, urgent: bool = False) -> None:
        """Send a request of kazoo's; `callback` gets its answer or a `ZkError`, on the loop's thread."""
        self.send_together([(request, callback)], urgent=urgent)

    def send_together(self, requests: _Batch, *, urgent: bool = False) -> None:
        """
        Send requests in one go; each callback gets its answer, in the same order.

        While `MAX_IN_FLIGHT` requests have no answer, further ones wait for their turn, unless they are `urgent`.

        Not to be called from a user's thread: kazoo's own hand-over to its thread swallows an exception that a
        signal raises in it, and loses the request.
        """
        if not self.usable:
            _answer_all(requests, OutcomeUnknown)
        elif urgent or (len(self._sent) < MAX_IN_FLIGHT and not self._unsent):
            self._transmit(requests)
        else:
            self._unsent.append(requests)

    def _transmit(self, requests: _Batch) -> None:
        client = cast("Client", self._client)
        now = clock.now()
        calls = []
        for request, callback in requests:
            reply = Reply(self, request, callback)
            self._sent[reply] = now
            calls.append((request, reply))
        if self._stall_timer is None:
            self._stall_timer = self.loop.call_later(self.timeout * STALL_SHARE, self._on_stall_timer)
        client.call_together(calls)

    def answered(self, reply: Reply, answer: Any) -> None:
        """Take an answer from kazoo's thread, once per request."""
        sent_at = self._sent.pop(reply, None)
        if sent_at is None:
            return
        if isinstance(answer, OutcomeUnknown) and self._client is not None:
            # kazoo fails the pending requests before it says SUSPENDED; nothing may be sent in between.
            if isinstance(answer.__cause__, ConnectionLoss):
                self._suspend("the connection broke")
            elif self.connected:
                self._leave_connection(answer)
        else:
            self._answered_at = clock.now()
            self._activity.note(sent_at, self._answered_at, self.timeout)
        try:
            reply.callback(answer)
        finally:
            while self._unsent and len(self._sent) < MAX_IN_FLIGHT and self.usable:
                self._transmit(self._unsent.popleft())

    def _leave_connection(self, answer: OutcomeUnknown) -> None:
        """
        Give up a connection on which a reply was unclear: all who asked look, on the next one, what is there.

        A server may reply so to each try. Then the connections are given up a second apart.
        """

        def leave() -> None:
            if client is self._client and client is not None and not self.connected:
                client.drop_connection()

        logger.warning("ZooKeeper's reply to a write is unclear, connecting again: %r", answer.__cause__)
        self._suspend("ZooKeeper's reply to a write was unclear")
        client, now = self._client, clock.now()
        if client is not None:
            self.outage.failed(client.host, "its replies are unclear")
        self._leave_at = max(now, self._leave_at + UNCLEAR_PAUSE)
        if self._leave_at == now:
            leave()
        else:
            self.loop.call_later(self._leave_at - now, leave)

    def _on_pinged(self, client: Client, sent_at: float, answered_at: float) -> None:
        if client is self._client:
            self._activity.note(sent_at, answered_at, self.timeout)

    def _on_stall_timer(self) -> None:
        self._stall_timer = None
        if not self._sent or self._client is None:
            return
        # Answers come in the order of the requests, so while any comes, the oldest request is only far down the line.
        since = max(next(iter(self._sent.values())), self._answered_at)
        left = since + self.timeout * STALL_SHARE - clock.now()
        if left <= 0:
            # kazoo restarts its own dead-man's timer with every request, so it would never notice.
            logger.warning("no answer from ZooKeeper for %.1f s, connecting anew", self.timeout * STALL_SHARE - left)
            self.doubt("ZooKeeper does not answer")
            self._client.drop_connection()
            left = self.timeout * STALL_SHARE
        self._stall_timer = self.loop.call_later(left, self._on_stall_timer)

    def unwatch(self, path: str, watcher: Callable[[Any], None]) -> None:
        """Forget a watcher; the server's side of the watch ends with what it is for."""
        client = self._client
        if client is not None:
            for watched in (client._data_watchers, client._child_watchers):
                watchers = watched.get(path)
                if watchers is not None:
                    watchers.discard(watcher)

    # --- the state of the connection ----------------------------------------------------------------------------

    def _spawn(self) -> None:
        if self.closing:
            return
        client = Client(self.options)

        def listener(state: str) -> None:
            # On kazoo's thread, which must not be kept: take down what it knows now and go on.
            self.loop.deliver(
                self._on_state, client, state, client.session_id, client.negotiated_timeout, client.connect_sent_at
            )

        def on_pinged(sent_at: float) -> None:
            self.loop.deliver(self._on_pinged, client, sent_at, clock.now())

        client.add_listener(listener)
        client.outage = self.outage
        client.on_pinged = on_pinged
        client.on_ended = lambda: self.loop.deliver(self._on_ended, client)
        client.in_a_hurry = lambda: self.lease.valid  # else a thousand idle processes would hurry after an outage
        self._client = client
        client.start_async()
        self._watch_over_client()

    def _watch_over_client(self) -> None:
        if self._replace_timer is not None:
            self._replace_timer.cancel()
        self._replace_timer = self.loop.call_later(REPLACE_AFTER * self.timeout, self._replace_client)

    def _replace_client(self) -> None:
        """Give up on a client that did not get through, or whose thread has died, and start a new one."""
        self._replace_timer = None
        if self.closing or self.connected:
            return
        old, self._client = self._client, None
        if old is not None:
            old.end()
        self._end_of_session()
        self._spawn()

    def _on_state(
        self, client: Client, state: str, session_id: int | None, timeout: float, connect_sent_at: float
    ) -> None:
        if client is self._leaving and state == KazooState.CONNECTED:
            client.end()
        if client is not self._client or self.closing:
            return
        if state == KazooState.CONNECTED and session_id is not None:
            self._activity.restart(connect_sent_at)
            self._on_connected(session_id, timeout)
        elif state == KazooState.SUSPENDED:
            self._suspend("the connection to ZooKeeper is suspended")
        elif state == KazooState.LOST:
            self._end_of_session()
            if client.client_state in ("CLOSED", "AUTH_FAILED"):
                # kazoo's thread is at its end and will not come back by itself.
                self._spawn_pause = min(max(0.1, 2 * self._spawn_pause), self.timeout / 4)
                if self._replace_timer is not None:
                    self._replace_timer.cancel()
                self._replace_timer = self.loop.call_later(self._spawn_pause, self._replace_client)
            else:
                self._watch_over_client()

    def _on_connected(self, session_id: int, timeout: float) -> None:
        if self._replace_timer is not None:
            self._replace_timer.cancel()
            self._replace_timer = None
        self._spawn_pause = 0.0
        resumed = session_id == self.session_id
        if not resumed:
            self._end_of_session()
            self.session_id = session_id
        self.timeout = timeout or self.options.session_timeout
        if not resumed and abs(self.timeout - self.options.session_timeout) > 0.002:  # it is sent in milliseconds
            logger.warning(
                "asked for a session timeout of %g s and got %g s, by which all leases are measured; see the server's "
                "minSessionTimeout and maxSessionTimeout",
                self.options.session_timeout,
                self.timeout,
            )
        self._change_state(State.CONNECTED)
        self._tell(lambda observer: observer.on_connected(resumed=resumed))

    def _suspend(self, reason: str) -> None:
        if self.state is not State.CONNECTED:
            return
        self._change_state(State.SUSPENDED)
        self._drop_unsent(OutcomeUnknown)
        self.doubt(reason)
        self._watch_over_client()

    def _end_of_session(self) -> None:
        if self.session_id is None:
            return
        self.session_id = None
        self.suspect = True
        self.lease.end()
        self._change_state(State.LOST)
        unanswered, self._sent = self._sent, {}
        _answer_all([(reply, reply.callback) for reply in unanswered], SessionGone)
        self._drop_unsent(SessionGone)
        self._tell(lambda observer: observer.on_session_lost())

    def _drop_unsent(self, answer: Callable[[], ZkError]) -> None:
        unsent, self._unsent = self._unsent, deque()
        for requests in unsent:
            _answer_all(requests, answer)

    def _change_state(self, state: State) -> None:
        previous, self.state = self.state, state
        if state is previous:
            return
        logger.info(
            "connection to ZooKeeper: %s, was %s", state, previous, extra={"session": session_hex(self.session_id)}
        )
        signal = signals.connection_state_changed
        if signal.has_listeners(Session):
            self.dispatch(_send_state, state, previous, self.session_id)

    def _tell(self, call: Callable[[Observer], None]) -> None:
        for observer in list(self.observers):
            try:
                call(observer)
            except Exception:
                # One lock's trouble must not keep the news from the others.
                logger.exception("%r failed on a change of the session", observer)

    def _close(self, at_exit: bool) -> None:
        client, self._client = self._client, None
        self.closing = True
        self._may_start_threads = not at_exit
        self._end_of_session()
        if not at_exit:
            self._tell(lambda observer: observer.on_closed())
        if client is not None and client.session_id is not None:
            self._leave(client)
            return
        if client is not None:
            client.end()
        self._finish()

    def _leave(self, client: Client) -> None:
        """
        End the session, and finish when kazoo's thread is at its end.

        kazoo gives up connecting as soon as it is stopped. A process that ends because of an abort stops it just after
        a cut: its locks would not be free before the session expires, though a new connection takes a moment only.
        """
        self._leaving = client
        if client.connected:
            client.end()
        else:
            self.loop.call_later(FAREWELL, client.end)

    def _on_ended(self, client: Client) -> None:
        if client is self._leaving:
            self._leaving = None
            self._finish()

    def _finish(self) -> None:
        """End the threads, after all that is still to be told has been told."""
        if self._dispatcher is not None:
            self._dispatcher.post(self._done.set)
            self._dispatcher.stop()
        else:
            self._done.set()
        self.loop.stop()


class Reply:
    """What kazoo fills with the answer to a request, on its own thread; passes it on to the loop's."""

    __slots__ = ("_request", "_session", "callback")

    def __init__(self, session: Session, request: Any, callback: Callable[[Any], None]) -> None:
        self._session = session
        self._request = request
        self.callback = callback

    def set(self, value: Any = None) -> None:
        """Take the answer; that of a transaction may say of its parts only that it is unclear what became of it."""
        failed = failure(value) if isinstance(self._request, Transaction) else None
        error = translate(failed) if failed is not None else None
        answer = error if isinstance(error, OutcomeUnknown) else value
        self._session.loop.deliver(self._session.answered, self, answer)

    def set_exception(self, error: BaseException) -> None:
        """Take the error."""
        answer: ZkError = translate(error, read=isinstance(self._request, _READS))
        self._session.loop.deliver(self._session.answered, self, answer)


def _answer_all(requests: _Batch, answer: Callable[[], ZkError]) -> None:
    for _, callback in requests:
        try:
            callback(answer())
        except Exception:
            # One lock's trouble must not keep the news from the others.
            logger.exception("%r failed on a request without an answer", callback)


def _send_state(state: State, previous: State, session_id: int | None) -> None:
    signals.connection_state_changed.send_robust(
        Session, state=str(state), previous=str(previous), session_id=session_id
    )
