"""
The kazoo client of a session: hosts, credentials, TLS, and the timeout that the server granted.

These private names of kazoo are used here and in `connection`, `gateway` and `session`:
`KazooClient._call`, `_queue`, `_pending`, `_state`, `_connection`, `_session_id`, `_stopped`, `_data_watchers`;
`ConnectionHandler._connection_routine`, `_expand_client_hosts`, `_connect_loop`, `_connect`, `_invoke`,
`_send_request`, `_send_ping`, `_read_header`, `_read_socket`, `_read`, `_write`, `_xid`, `_socket`,
`_read_sock`, `_write_sock`. `connection` overrides `ConnectionHandler.zk_loop` and reads its `connection_stopped`.
`tests/contract/zk/test_kazoo_surface.py` fails when a release of kazoo changes one of them.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Sequence
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionClosedError
from kazoo.protocol.serialization import Auth, CloseInstance, Connect
from kazoo.protocol.states import KeeperState
from kazoo.retry import KazooRetry
from kazoo.security import ACL, CREATOR_ALL_ACL, OPEN_ACL_UNSAFE, Id, Permissions

from django_zklock.zk.connection import FIRST_RETRY, Connection, new_handler
from django_zklock.zk.options import SessionOptions
from django_zklock.zk.outage import Outage, address

_PERMISSIONS = {
    "r": Permissions.READ,
    "w": Permissions.WRITE,
    "c": Permissions.CREATE,
    "d": Permissions.DELETE,
    "a": Permissions.ADMIN,
}


def acls(options: SessionOptions) -> list[ACL]:
    """Return the access list of new znodes. It is always given, as kazoo's default is open."""
    if isinstance(options.acl, str):
        return list(CREATOR_ALL_ACL if options.acl == "creator" else OPEN_ACL_UNSAFE)
    return [ACL(_permissions(perms), Id(scheme, ident)) for scheme, ident, perms in options.acl]


def _permissions(letters: str) -> int:
    mask = 0
    for letter in letters:
        mask |= _PERMISSIONS[letter]
    return mask


class Client(KazooClient):
    """A kazoo client with our handler and connection, bounded pauses, and the negotiated timeout."""

    def __init__(self, options: SessionOptions) -> None:
        self.options = options
        handler = new_handler(options)
        super().__init__(
            hosts=",".join(map(address, options.hosts)),
            timeout=options.session_timeout,
            handler=handler,
            default_acl=acls(options),
            auth_data=list(options.auth),
            use_ssl=options.tls is not None,
            connection_retry=KazooRetry(max_tries=-1, delay=FIRST_RETRY, sleep_func=handler.sleep_func),
            logger=_logger(),
        )
        self._connection = Connection(self, self._conn_retry.copy(), logger=self.logger)
        self.outage = Outage(options.hosts)
        self.on_pinged: Callable[[float], object] = lambda sent_at: None  # gets the time of a ping that was answered
        self.on_ended: Callable[[], object] = lambda: None  # called when kazoo's thread ends, for whatever reason
        self.lease_lasts: Callable[[], bool] = lambda: False  # asked before each pause; without locks there is no hurry

    def end(self) -> None:
        """
        End the session if there is a connection, or stop connecting; return at once.

        `on_ended` is called when kazoo's thread has ended. kazoo's own `stop` waits for that in a thread that may not
        run any more at the exit of the process.
        """
        if self._stopped.is_set():
            return
        self._stopped.set()
        self._queue.append((CloseInstance, None))
        try:
            if self._connection.connection_stopped.is_set():  # its thread has died, or has not begun yet
                self._connection.close()
                self.on_ended()
            else:
                self._connection.wake()
        except Exception as error:  # noqa: BLE001 - `close` raises no narrower one
            # Meanwhile its thread has seen that it should end, or has begun, and will see it. Either calls `on_ended`.
            self.logger.debug("the connection ends by itself: %r", error)

    def join(self) -> None:
        """Wait until kazoo's thread has ended. That takes only moments after the end of the session."""
        thread = self._connection._connection_routine
        if thread is not None:
            thread.join(1.0)

    def call_together(self, requests: Sequence[tuple[Any, Any]]) -> None:
        """Send requests together, each with the object that takes its reply; on a client that has a connection."""
        if self._connection._write_sock is None or self._state not in (KeeperState.CONNECTED, KeeperState.CONNECTING):
            for request, result in requests:
                self._call(request, result)  # it fails with the right error
            return
        self._queue.extend(requests)
        try:
            self._connection.wake()
        except OSError:
            for _, result in requests:
                result.set_exception(ConnectionClosedError("Connection has been closed"))

    @property
    def negotiated_timeout(self) -> float:
        """The session timeout that the server granted, in seconds."""
        return float(self._connection.negotiated_timeout)

    @property
    def connect_sent_at(self) -> float:
        """When the connect of the present connection was sent, on `clock.now()`."""
        return float(self._connection.connect_sent_at)

    @property
    def session_id(self) -> int | None:
        """The id of the present session, and `ephemeralOwner` of its znodes."""
        session_id = self._session_id
        return int(session_id) if session_id else None

    @property
    def server(self) -> str:
        """The server of the present connection, or of the last one, as "address:port"; "" if there was none."""
        host = self._connection.last_host
        return "" if host is None else address(host)

    @property
    def host(self) -> tuple[str, int]:
        """The server that was tried last, as spelled in the settings."""
        return self._connection.host

    def drop_connection(self) -> None:
        """Cut the connection, not the session. kazoo then connects again, to another server if there is one."""
        sock = self._connection._socket
        if sock is not None:
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # it is closed already

    def forget_sockets(self) -> None:
        """Close a forked child's copies of the sockets. Nothing is sent, so the parent's connection stays open."""
        for sock in (self._connection._socket, self._connection._read_sock, self._connection._write_sock):
            if sock is not None:
                try:
                    sock.close()
                except OSError:
                    pass


class _Redact(logging.Filter):
    """Remove credentials and session passwords from kazoo's log lines of every level."""

    def filter(self, record: logging.LogRecord) -> bool:
        if "session_passwd" in str(record.msg):
            return False
        if isinstance(record.args, tuple):
            record.args = tuple(_redacted(arg) for arg in record.args)
        return True


def _redacted(arg: object) -> object:
    if isinstance(arg, Auth):
        return arg._replace(auth="...")
    if isinstance(arg, Connect):
        return arg._replace(passwd=b"...")  # with it and the session id, anyone could take the session over
    return arg


class _Quiet(logging.Filter):
    """
    Log kazoo's lines about each try to connect at DEBUG.

    `Outage.log` logs once for all tries why there is no connection, and the session logs each change of its state.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        if logging.DEBUG < record.levelno < logging.ERROR:
            record.levelno, record.levelname = logging.DEBUG, logging.getLevelName(logging.DEBUG)
        return record.levelno != logging.DEBUG or logging.getLogger(record.name).isEnabledFor(logging.DEBUG)


def _logger() -> logging.Logger:
    logger = logging.getLogger("django_zklock.zk.kazoo")
    for kind in (_Redact, _Quiet):
        if not any(isinstance(each, kind) for each in logger.filters):
            logger.addFilter(kind())
    return logger
