"""The requests of a session that have no reply yet, and those that wait until fewer are in flight."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from django_zklock import clock
from django_zklock.log import Logger
from django_zklock.zk.client import Client, PendingRequest, Watch
from django_zklock.zk.errors import OutcomeUnknown, ZkError
from django_zklock.zk.lease import LastContact
from django_zklock.zk.loop import Loop, Timer

logger = Logger("django_zklock.zk")

# Part of the session timeout. After so long without a reply, the connection counts as dead. The lease still lasts then.
STALL_SHARE = 1 / 6
MAX_IN_FLIGHT = 200  # requests without a reply; others wait here, so a heartbeat never queues behind many

_Batch: TypeAlias = Sequence[tuple[Any, Callable[[Any], object]]]
"""Requests that are sent together, and their callbacks."""


class Requests:
    """
    The requests of one session; on the loop's thread.

    The session calls `open` for each connection, and `close` when that connection ends. `on_stall` is called when there
    was no reply for too long, `on_unknown` when a reply was lost or is unclear.
    """

    def __init__(
        self,
        loop: Loop,
        contact: LastContact,
        on_stall: Callable[[float], object],
        on_unknown: Callable[[OutcomeUnknown], object],
    ) -> None:
        self._loop = loop
        self._contact = contact
        self._on_stall = on_stall  # gets the seconds without a reply
        self._on_unknown = on_unknown
        self._client: Client | None = None  # while there is a connection
        self._session_id: int | None = None
        self._timeout = 0.0  # of the session
        self._sent: dict[PendingRequest, float] = {}  # requests without a reply, oldest first, and when they were sent
        self._unsent: deque[_Batch] = deque()  # requests that wait until fewer are in flight
        self._replied_at = float("-inf")  # when the last reply arrived, on clock.now()
        self._stall_timer: Timer | None = None

    def open(self, client: Client, session_id: int, timeout: float) -> None:
        """Send requests on this connection from now on."""
        self._client, self._session_id, self._timeout = client, session_id, timeout

    def close(self) -> None:
        """Send nothing more: the connection broke. The requests that wait fail."""
        self._client = None
        self._fail_unsent(OutcomeUnknown)

    def fail_all(self, error: type[ZkError]) -> None:
        """Fail all requests, because the session is over."""
        self._client = None
        unanswered, self._sent = self._sent, {}
        _fail([(pending, pending.callback) for pending in unanswered], error)
        self._fail_unsent(error)

    @property
    def usable(self) -> bool:
        """
        True if a request that is sent now belongs to this session.

        kazoo's client may have a new session before the loop gets that event.
        """
        return self._client is not None and self._client.session_id == self._session_id

    def last_zxid(self) -> Callable[[], int]:
        """Return a function that returns the newest zxid in the replies to the present client."""
        client = self._client  # the next client has another session, perhaps at another ensemble
        return lambda: 0 if client is None else int(client.last_zxid)

    @property
    def unanswered(self) -> int:
        """The number of requests in flight."""
        return len(self._sent)

    def send(self, request: Any, callback: Callable[[Any], object], *, urgent: bool = False) -> None:
        """Send a request of kazoo's. `callback` gets its reply or a `ZkError`, on the loop's thread."""
        self.send_together([(request, callback)], urgent=urgent)

    def send_together(self, requests: _Batch, *, urgent: bool = False) -> None:
        """
        Send requests together; each callback gets its reply, in the same order.

        While `MAX_IN_FLIGHT` requests have no reply, others wait, unless they are `urgent`.

        A user's thread must not call this. A signal handler may raise there while kazoo passes the request to its own
        thread. kazoo would swallow that exception and lose the request.
        """
        client = self._client
        if client is None or not self.usable:
            _fail(requests, OutcomeUnknown)
            return
        if not urgent and (len(self._sent) >= MAX_IN_FLIGHT or self._unsent):
            self._unsent.append(requests)
            return
        now = clock.now()
        calls = []
        for request, callback in requests:
            pending = PendingRequest(self._loop, request, callback, self._on_reply)
            self._sent[pending] = now
            calls.append((request, pending))
        if self._stall_timer is None:
            self._stall_timer = self._loop.call_later(self._timeout * STALL_SHARE, self._on_stall_timer)
        client.call_together(calls)

    def watch(self, path: str, on_event: Callable[[bool], object] | None) -> Watch | None:
        """Return a watch to send with a request; None without `on_event`."""
        return None if on_event is None else Watch(self._loop, path, on_event, self._unwatch)

    def _unwatch(self, path: str, watch: Watch) -> None:
        """Forget a watch. On the server, it ends with the next event of that znode."""
        if self._client is not None:  # else it has ended with the connection
            self._client.unwatch(path, watch)

    def _on_reply(self, pending: PendingRequest, reply: object) -> None:
        """Handle the reply to a request, or its error; once per request."""
        sent_at = self._sent.pop(pending, None)
        if sent_at is None:
            return
        if isinstance(reply, OutcomeUnknown):
            self._on_unknown(reply)
        else:
            self._replied_at = clock.now()
            self._contact.record(sent_at, self._replied_at, self._timeout)
        try:
            pending.callback(reply)
        finally:
            while self._unsent and len(self._sent) < MAX_IN_FLIGHT and self.usable:
                self.send_together(self._unsent.popleft(), urgent=True)

    def _on_stall_timer(self) -> None:
        self._stall_timer = None
        if not self._sent:
            return
        # Replies arrive in the order of the requests. While replies arrive, the oldest request only queues.
        since = max(next(iter(self._sent.values())), self._replied_at)
        longest = self._timeout * STALL_SHARE
        remaining = since + longest - clock.now()
        if remaining <= 0:
            self._on_stall(longest - remaining)
            remaining = longest
        self._stall_timer = self._loop.call_later(remaining, self._on_stall_timer)

    def _fail_unsent(self, error: type[ZkError]) -> None:
        unsent, self._unsent = self._unsent, deque()
        for requests in unsent:
            _fail(requests, error)


def _fail(requests: _Batch, error: type[ZkError]) -> None:
    for _, callback in requests:
        try:
            callback(error())
        except Exception:
            # The other callbacks must be called all the same.
            logger.exception("%r failed on a request without a reply", callback)
