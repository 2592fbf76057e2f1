"""
Run the server's thread: a selector, the listener, the connections, and calls from other threads.

The loop moves bytes and measures time. The service decides what to answer.
"""

from __future__ import annotations

import errno
import logging
import resource
import selectors
import socket
import threading
import time
import warnings
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, Final, TypeVar

from django_zklock.core import clock
from django_zklock.testing.server.connection import Connection
from django_zklock.testing.server.service import Service

T = TypeVar("T")

log = logging.getLogger(__name__)

_BACKLOG: Final = 4096
_READ, _WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE


class Loop:
    """
    A service on a port, in its own thread.

    All methods but `start`, `stop`, `abandon` and `call` run in that thread. `call` runs a function there and waits for
    its result.
    """

    def __init__(self, host: str, port: int) -> None:
        self.host = host
        self._reservation, self.port = _reserve(host, port)  # first, as it may fail
        self.service: Service  # set before start
        self.paused = False
        self._calls: SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = SimpleQueue()
        self._wake, self._woken = socket.socketpair()
        self._wake.setblocking(False)
        self._woken.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._woken, _READ)
        self._listener: socket.socket | None = None
        self._running = True
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"zk-devserver-{self.port}", daemon=True)

    def start(self) -> None:
        """Start the thread. The owner of the loop opens the listener."""
        self._thread.start()

    def call(self, function: Callable[[], T]) -> T:
        """Run a function in the loop's thread and return what it returns, or raise what it raises."""
        if threading.current_thread() is self._thread:
            return function()
        future: Future[T] = Future()
        self._calls.put((function, future))
        with suppress(OSError):  # enough wake-ups are pending, or the thread has ended
            self._wake.send(b"\0")
        if self._ended.is_set():  # the thread may have ended without seeing the call
            self._run_calls()
        return future.result()

    def stop(self) -> None:
        """End the thread and close all sockets."""

        def end() -> None:
            self._running = False

        self.call(end)
        self._thread.join()
        self.abandon()

    def abandon(self) -> None:
        """Close all sockets of this process. A forked child calls it, because it has copies that nothing serves."""
        self._selector.close()
        for sock in (self._reservation, self._listener, self._wake, self._woken):
            if sock is not None:
                sock.close()
        for connection in self.service.connections:
            connection.sock.close()

    # in the thread

    def listen(self) -> None:
        """Open the listener. Raises OSError if the port is taken."""
        if self._listener is not None:
            return
        listener = _bound(self.host, self.port)
        listener.setblocking(False)
        try:
            listener.listen(_BACKLOG)
        except OSError:
            listener.close()
            raise
        self._listener = listener
        self._selector.register(listener, _READ)

    def close_listener(self) -> None:
        """Close the listener and all connections. New connections are refused, and the port stays reserved."""
        if self._listener is not None:
            self._selector.unregister(self._listener)
            with suppress(OSError):  # some systems do not allow it
                self._listener.shutdown(socket.SHUT_RDWR)  # a forked child may still have the socket open
            self._listener.close()
            self._listener = None
        for connection in list(self.service.connections):
            self.service.drop(connection)

    def forget(self, connection: Connection) -> None:
        """Remove a connection from the selector before it is closed."""
        with suppress(KeyError):
            self._selector.unregister(connection.sock)

    def _run(self) -> None:
        try:
            while self._running:
                self._run_once()
        finally:
            self.close_listener()
            self._ended.set()
            self._run_calls()

    def _run_once(self) -> None:
        service = self.service
        for key, events in self._selector.select(service.next_tick() - clock.now()):
            connection = key.data
            if connection is None:
                self._on_internal(key.fileobj)
            elif events & _READ and not connection.closed:
                self._read(connection)
        service.tick(clock.now())
        touched = list(service.dirty)
        service.flush()
        for connection in touched:
            self._select_events(connection)

    def _read(self, connection: Connection) -> None:
        try:
            self.service.read(connection)
        except Exception:  # a defect of the server ends one connection only
            log.exception("request of client %s failed", connection.client)
            self.service.drop(connection)

    def _on_internal(self, sock: Any) -> None:
        if sock is self._woken:
            with suppress(BlockingIOError):
                self._woken.recv(4096)
            self._run_calls()
        elif self._listener is not None:
            self._accept(self._listener)

    def _run_calls(self) -> None:
        """Run the calls that have come. During a pause, wait for more of them until it ends."""
        while True:
            try:
                function, future = self._calls.get(block=self.paused and self._running)
            except Empty:
                return
            try:
                future.set_result(function())
            except BaseException as error:  # noqa: BLE001 - goes to the caller
                future.set_exception(error)

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(128):
            try:
                sock, (address, port, *_) = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE) or not _raise_file_limit():
                    time.sleep(0.01)  # the listener stays readable, and the thread would spin
                    return
                continue
            connection = Connection(sock, address, port, self.service.dirty)
            self.service.connections.add(connection)
            self._selector.register(sock, _READ, connection)

    def _select_events(self, connection: Connection) -> None:
        """Select the events that the connection waits for: data to read, room to write."""
        if connection.closed:
            return
        events = (0 if connection.closing else _READ) | (
            _WRITE if connection.partial and not self.service.faults.stall else 0
        )
        known = self._selector.get_map().get(connection.sock)
        if not events:
            self.forget(connection)
        elif known is None:
            self._selector.register(connection.sock, events, connection)
        elif known.events != events:
            self._selector.modify(connection.sock, events, connection)


def _bound(host: str, port: int) -> socket.socket:
    """Return a new socket that is bound to this port. Raises OSError if the port is taken."""
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
    except OSError:
        sock.close()
        raise
    return sock


def _reserve(host: str, port: int) -> tuple[socket.socket | None, int]:
    """
    Choose a port, and reserve it for the times when the server does not listen.

    A bound socket that never listens is enough: Linux does not give the port to outgoing connections, and refuses
    connections to it. On macOS two sockets cannot be bound to one port, so there is no reservation.
    """
    reservation = _bound(host, port)
    port = reservation.getsockname()[1]
    try:
        _bound(host, port).close()
    except OSError:
        reservation.close()
        return None, port
    return reservation, port


def _raise_file_limit() -> bool:
    """Raise the limit on open files to the hard limit. If it is reached already, warn and return False."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 65536 if hard == resource.RLIM_INFINITY else hard
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return True
    warnings.warn(
        "The dev server has no file descriptors left and cannot accept connections. "
        "Raise the hard limit of this process (`ulimit -Hn`).",
        ResourceWarning,
        stacklevel=2,
    )
    return False
