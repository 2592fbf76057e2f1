"""
The ZooKeeper session of a process: its connection, its lease, and its replacement when it is lost.

All methods run on the loop's thread, unless their docstrings say otherwise.
"""

from __future__ import annotations

import enum
import os
import threading
from collections.abc import Callable
from typing import TypeAlias

from django_zklock.core import clock, hooks
from django_zklock.core.errors import ZkLockError
from django_zklock.core.log import Logger
from django_zklock.core.queue.escaping import session_hex
from django_zklock.core.zk import troubles
from django_zklock.core.zk.client import Client, Requests
from django_zklock.core.zk.codes import meaning
from django_zklock.core.zk.errors import INTERRUPTED, OutcomeUnknown, SessionGone
from django_zklock.core.zk.gateway import Callback, Gateway
from django_zklock.core.zk.lease import GrantSession, LastContact, Lease
from django_zklock.core.zk.loop import NEVER, START_AGAIN, Loop
from django_zklock.core.zk.options import FormerSession, SessionOptions
from django_zklock.core.zk.outage import Outage

logger = Logger("django_zklock.zk")

LAST_REPLIES = 0.3  # seconds in which a session that is closed may get its last replies
CLOSE_WAIT = 1.0  # seconds in which a disconnected client may reconnect, so that it can end its session
UNCLEAR_PAUSE = 1.0  # seconds between two connections that are dropped because of an unclear reply
REFUSED_GATE_PAUSE = 6.0  # seconds between two connections that are dropped because the gate was refused


class ConnectionState(enum.StrEnum):
    """The state of the connection."""

    CONNECTING = "connecting"  # no session yet
    CONNECTED = "connected"
    SUSPENDED = "suspended"  # no connection; the session may be alive
    LOST = "lost"  # the session is over


class SessionObserver:
    """Base of the observers of a session. Their methods are called on the loop's thread."""

    __slots__ = ()

    @property
    def needs_connection(self) -> bool:
        """Whether somebody waits for this, or holds it. Read by any thread."""
        return True

    def on_connected(self, *, resumed: bool) -> None:
        """There is a connection. `resumed`: it continues the session of the connection before."""

    def on_session_lost(self) -> None:
        """The session is over, and its znodes are deleted or about to be."""

    def on_closed(self) -> None:
        """This process closes its session for good."""

    def on_suspect(self, reason: str) -> None:
        """The connection broke, or the heartbeat is late; the lease still lasts."""

    def on_confirmed(self) -> None:
        """A quorum has confirmed a suspect session before its lease was over."""

    def on_lease_over(self) -> None:
        """The lease is over. The server may give the locks of this session to others."""

    def on_failure(self, error: Exception) -> None:
        """One of these methods has raised this error, which was logged."""


Gate: TypeAlias = Callable[[Gateway, Callback[ZkLockError | None]], object]
"""Gets the requests of a new connection. It calls back with None when the session may go on with it, or the error."""


class Session(GrantSession):
    """
    The ZooKeeper session of this process, and its one connection.

    It starts on first use. An orderly exit closes it; a forked child only drops it. Two threads work for it: the loop's
    thread runs the protocol and writes requests, and kazoo's thread connects and reads replies. The client, and with it
    kazoo's thread, is replaced if that thread has died.
    """

    def __init__(self, options: SessionOptions) -> None:
        super().__init__(Loop("zklock-loop"))
        self.options = options
        self.lease = Lease(self.loop, self._on_lease_over)
        self.observers: dict[SessionObserver, None] = {}  # loop thread; a dict keeps the order
        # Written by the loop's thread, read by any: each is a plain value, replaced as a whole.
        self.state = ConnectionState.CONNECTING
        # In seconds; once connected, the smallest that this session was granted.
        self.timeout = options.session_timeout if options.former is None else options.former.timeout
        self.suspect = True  # connection suspended, or the heartbeat late
        self.wanted_until = 0.0  # on clock.now(): a request has waited for a connection until then, or still waits
        self.outage = Outage(options.hosts, options.connect_timeout)
        self.gate: Gate | None = None  # loop thread; see `_pass_gate`
        self._former = options.former  # until there is a session
        self._client: Client | None = None
        self._closing_client: Client | None = None  # ends the session after `close`
        self._contact = LastContact()
        self.requests = Requests(self.loop, self._contact, self._on_stall, self._on_unknown)
        self.gateway = Gateway(self.requests, options, self.extend_lease)
        self._start_timer = NEVER
        self._drop_at = float("-inf")  # on clock.now(): when the last connection with an unclear reply was dropped
        self._closed = threading.Event()

    # --- start and end ------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the threads and begin to connect; return at once. For any thread."""
        self.loop.start()
        self.loop.post(self._start_client)

    def close(self, timeout: float, *, at_exit: bool = False) -> None:
        """
        End the session, so that its locks are released at once; wait at most `timeout` seconds. For any thread.

        At the exit of the process, the threads that wait for a lock get no error: it would only be noise, as they are
        about to end. No thread is started then, because Python does not allow it. At any other time, the threads of the
        session have ended when this returns in time.
        """
        if self.pid != os.getpid():
            return
        client = self._client
        self.loop.post(self._close, at_exit, clock.now() + LAST_REPLIES)
        if self._closed.wait(timeout) and client is not None and not at_exit:
            client.join()
            self.loop.join()

    def keep_open(self, timeout: float) -> None:
        """Keep the session and its znodes for another process, and send nothing else. For any thread."""
        self.pid = 0  # first: nothing is released any more, as in a forked child
        disconnected = threading.Event()
        self.loop.post(self._disconnect)
        self.loop.post(disconnected.set)
        self.loop.post(self._end_threads)  # and wait for no receiver of a signal
        disconnected.wait(timeout)

    def _disconnect(self) -> None:
        client, self._client = self._client, None
        self.closing = True
        self.requests.close()
        if client is not None:
            client.disconnect()

    def forget(self) -> None:
        """Drop the session in a forked child. The parent keeps its socket."""
        self.closing = True
        if self._client is not None:
            self._client.forget_sockets()

    @property
    def leased_until(self) -> float:
        return self.lease.until

    def described(self) -> FormerSession:
        """Describe the present session for a process that goes on with it; on the loop's thread."""
        assert self._client is not None
        assert self.session_id is not None
        return FormerSession(id=self.session_id, password=self._client.session_password, timeout=self.timeout)

    @property
    def connected(self) -> bool:
        """True while there is a connection, as far as this thread knows."""
        return self.state is ConnectionState.CONNECTED

    @property
    def server(self) -> str:
        """The server of the present connection as "address:port", or "". For any thread."""
        client = self._client
        return client.server if client is not None and self.connected else ""

    def explain(self, within: float | None = None) -> str:
        """Return a sentence that says why there was no reply within `within` seconds. For any thread."""
        return self.outage.explain(within, self.server)

    # --- the lease ----------------------------------------------------------------------------------------------

    def extend_lease(self, sent_at: float) -> None:
        """Extend the lease after a quorum has acknowledged a write that was sent at `sent_at`, on `clock.now()`."""
        self.refused = 0
        heard_at = self._contact.known_to_leader(sent_at, self.timeout)
        if self.lease.extend(sent_at, self.timeout, heard_at) and self.suspect and self.connected:
            self.suspect = False
            self._tell(lambda observer: observer.on_confirmed())

    def _on_lease_over(self) -> None:
        self._tell(lambda observer: observer.on_lease_over())

    def mark_suspect(self, reason: str) -> None:
        """Mark the session as suspect, until a quorum confirms it."""
        if not self.suspect:
            self.suspect = True
            self._tell(lambda observer: observer.on_suspect(reason))

    # --- broken connections -------------------------------------------------------------------------------------

    def _on_stall(self, seconds: float) -> None:
        # kazoo looks only for the replies to its pings, and would notice this later.
        self.mark_suspect(troubles.NO_ANSWER)
        if self._client is not None:
            self._client.drop_connection()
        logger.warning("no reply from ZooKeeper for %.1f s, connecting again", seconds)

    def _on_unknown(self, error: OutcomeUnknown) -> None:
        """
        Drop the connection after an unclear reply. On the next one, all contenders read what is really there.

        If a server sends unclear replies again and again, the connections are dropped a second apart.
        """
        client = self._client
        if client is None or not self.connected:
            return
        self._suspend(troubles.UNCLEAR_REPLY)
        logger.warning("ZooKeeper's reply to a write is unclear, connecting again: %r", error.__cause__ or error)
        why = f": {meaning(error.code)}" if error.code else ""
        self.outage.failed(client.host, f"its replies are unclear{why}")
        self._drop(client, UNCLEAR_PAUSE)

    def _drop(self, client: Client, pause: float) -> None:
        """Drop the connection now, or `pause` seconds after the last one that was dropped so."""

        def drop() -> None:
            if client is self._client and not self.connected:
                client.drop_connection()

        now = clock.now()
        self._drop_at = max(now, self._drop_at + pause)
        if self._drop_at == now:
            drop()
        else:
            self.loop.call_later(self._drop_at - now, drop)

    def _on_pinged(self, client: Client, sent_at: float, replied_at: float) -> None:
        if client is self._client:
            self._contact.record(sent_at, replied_at, self.timeout)

    # --- the state of the connection ----------------------------------------------------------------------------

    def _start_client(self) -> None:
        """Start a client, in place of one that has no thread any more. Without room for a thread, do so later."""
        if self.closing:
            return
        old, self._client = self._client, None
        if old is not None:
            old.end()
            self._end_of_session()
        try:
            self._client = client = self._new_client()
            client.start_async()
        except Exception as error:  # noqa: BLE001 - such as that there is no room for a thread or a socket
            self.outage.cannot_try(error)
            self.outage.log()
            self._start_client_later()

    def _start_client_later(self) -> None:
        self._start_timer.cancel()
        self._start_timer = self.loop.call_later(START_AGAIN, self._start_client)

    def _new_client(self) -> Client:
        """Return a client whose calls, on kazoo's thread, go to the loop's thread."""
        client = Client(self.options, self._former)
        deliver = self.loop.deliver
        client.outage = self.outage
        client.on_connected = lambda *session: deliver(self._on_connection, client, *session)
        client.on_broken = lambda is_over: deliver(self._on_broken, client, is_over)
        client.on_pinged = lambda sent_at: deliver(self._on_pinged, client, sent_at, clock.now())
        client.on_ended = lambda: deliver(self._on_ended, client)
        client.lease_lasts = lambda: self.lease.valid
        client.is_wanted = self._is_wanted
        return client

    def _is_wanted(self) -> bool:
        """Return whether anybody waits for a connection. For any thread."""
        waits = self.closing or clock.now() < self.wanted_until
        return waits or any(observer.needs_connection for observer in list(self.observers))

    def _on_connection(self, client: Client, session_id: int, timeout: float, connect_sent_at: float) -> None:
        if client is self._closing_client:
            client.end()
        if client is self._client and not self.closing:
            self._contact.restart(connect_sent_at)
            self.lease.limit(connect_sent_at, timeout)
            self._pass_gate(client, session_id, timeout)

    def _on_broken(self, client: Client, is_over: bool) -> None:
        if client is not self._client or self.closing:
            return
        if is_over:
            self._end_of_session()
        else:
            self._suspend(troubles.CONNECTION_BROKE)

    def _pass_gate(self, client: Client, session_id: int, timeout: float) -> None:
        """
        Go on with the session on this connection, as soon as its gate allows that.

        A connection takes the session from the one before it, whichever process has that. So the gate may look first
        whether this process still has the session. Nothing else is sent meanwhile. A server that does not answer in
        time, or refuses the requests of the gate, is left.
        """
        if self.gate is None or session_id != self.session_id:
            self._on_connected(client, session_id, timeout)
            return

        def on_passed(error: ZkLockError | None) -> None:
            if client is not self._client or session_id != self.session_id or isinstance(error, INTERRUPTED):
                return
            if error is None:
                self._on_connected(client, session_id, timeout)
            else:
                self.outage.failed(client.host, str(error).rstrip("."))
                self.outage.log()
                self._drop(client, REFUSED_GATE_PAUSE)

        requests = Requests(self.loop, self._contact, self._on_stall, lambda unknown: None)
        requests.open(client, session_id, timeout)
        self.gate(Gateway(requests, self.options, self.extend_lease), on_passed)

    def give_up(self) -> None:
        """Lose all locks, and connect no longer: the session is that of another process. On the loop's thread."""
        self._disconnect()
        self._end_of_session()
        self._tell(lambda observer: observer.on_closed())

    def _on_connected(self, client: Client, session_id: int, timeout: float) -> None:
        former, self._former = self._former, None
        resumed = session_id == self.session_id
        if not resumed:
            self._end_of_session()
            self.session_id = session_id
        asked = self.timeout if resumed or former is not None else self.options.session_timeout
        self.timeout = timeout
        self.requests.open(client, session_id, timeout)
        previous, self.state = self.state, ConnectionState.CONNECTED
        self._tell(lambda observer: observer.on_connected(resumed=resumed))
        self._report_state(ConnectionState.CONNECTED, previous)
        if abs(timeout - asked) > 0.002:  # it is in milliseconds
            logger.warning(
                "asked the server %s for a session timeout of %g s and got %g s, which all leases are based on; "
                "minSessionTimeout and maxSessionTimeout must be the same on all servers",
                client.server,
                asked,
                timeout,
            )

    def _suspend(self, reason: str) -> None:
        if self.state is not ConnectionState.CONNECTED:
            return
        previous, self.state = self.state, ConnectionState.SUSPENDED
        self.requests.close()
        self.mark_suspect(reason)
        self._report_state(ConnectionState.SUSPENDED, previous)

    def _end_of_session(self) -> None:
        if self.session_id is None:
            return
        self.session_id = None
        self.suspect = True
        self.refused = 0
        self.lease.end()
        previous, self.state = self.state, ConnectionState.LOST
        self.requests.fail_all(SessionGone)
        self._tell(lambda observer: observer.on_session_lost())
        self._report_state(ConnectionState.LOST, previous)

    def _report_state(self, state: ConnectionState, previous: ConnectionState) -> None:
        """Tell logs and the program that the state has changed. Call it last: first stop the work, then tell."""
        if state is previous:
            return
        text = "closed" if self.closing else state  # an orderly end is no loss
        logger.info(
            "connection to ZooKeeper: %s, was %s", text, previous, extra={"session": session_hex(self.session_id)}
        )
        hooks.events.connection_changed(self, str(state), str(previous))

    def _tell(self, call: Callable[[SessionObserver], None]) -> None:
        for observer in list(self.observers):
            try:
                call(observer)
            except Exception as error:
                # The failure of one lock must not keep an event, and the abort of its work, from another one.
                logger.exception("%r failed on a change of the session", observer)
                self.post(observer.on_failure, error)

    def _close(self, at_exit: bool, replies_until: float = 0.0) -> None:
        if self.connected and self.requests.unanswered and clock.now() < replies_until:
            # A short process would else never end what nobody waits for, such as the deletes of holds that are over.
            self.loop.call_later(0.002, lambda: self._close(at_exit, replies_until))
            return
        client, self._client = self._client, None
        self.closing = True
        self._may_start_threads = not at_exit
        self._end_of_session()
        if not at_exit:
            self._tell(lambda observer: observer.on_closed())
        if client is not None and client.session_id is not None:
            self._end_session_of(client)
            return
        if client is not None:
            client.end()
        self.loop.post(self._end_threads)

    def _end_session_of(self, client: Client) -> None:
        """
        End the session, and finish when kazoo's thread has ended.

        A disconnected client gets a moment to reconnect, because kazoo stops connecting as soon as it is stopped. A
        process that exits after an abort closes its session just after the connection broke. Without that moment, its
        locks would stay held until the session expires.
        """
        self._closing_client = client
        if client.connected:
            client.end()
        else:
            self.loop.call_later(CLOSE_WAIT, client.end)

    def _on_ended(self, client: Client) -> None:
        if client is self._closing_client:
            self._closing_client = None
            # `deliver` may overtake what was posted before, such as the last signals; `post` does not.
            self.loop.post(self._end_threads)
        elif client is self._client and not self.closing:
            self._start_client_later()

    def _end_threads(self) -> None:
        if self._dispatcher is not None:
            self._dispatcher.post(self._closed.set)
            self._dispatcher.stop()
        else:
            self._closed.set()
        self.loop.stop()
