"""
The thread of a server: a selector, the listener, the connections, and calls from other threads.

It knows sockets and time; what is said on the connections is the service's.
"""

from __future__ import annotations

import errno
import logging
import selectors
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, Final, TypeVar

from django_zklock.testing.server.connection import Connection
from django_zklock.testing.server.limits import more_files
from django_zklock.testing.server.service import Service

T = TypeVar("T")

log = logging.getLogger(__name__)

_BACKLOG: Final = 4096
_READ, _WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE


class Loop:
    """
    Runs a service on a port, in a thread of its own.

    Everything but `start`, `stop` and `call` runs in that thread. `call` hands a function over to it and waits for
    the outcome.
    """

    def __init__(self, host: str, port: int) -> None:
        self.host = host
        self._keeper, self.port = _reserve(host, port)  # first, as it may fail
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
        """Start the thread. The listener is opened by whoever owns the loop."""
        self._thread.start()

    def call(self, function: Callable[[], T]) -> T:
        """Run a function in the loop's thread and return what it returns, or raise what it raises."""
        if threading.current_thread() is self._thread:
            return function()
        future: Future[T] = Future()
        self._calls.put((function, future))
        with suppress(OSError):  # there are wake-ups enough, or the thread has ended
            self._wake.send(b"\0")
        if self._ended.is_set():  # after which the thread may not have seen the call
            self._answer_calls()
        return future.result()

    def stop(self) -> None:
        """End the thread and close all sockets."""

        def end() -> None:
            self._running = False

        self.call(end)
        self._thread.join()
        self.abandon()

    def abandon(self) -> None:
        """Close all sockets of this process; one that was forked does it for its copies, which nobody serves."""
        self._selector.close()
        for sock in (self._keeper, self._listener, self._wake, self._woken):
            if sock is not None:
                sock.close()
        for connection in self.service.connections:
            connection.sock.close()

    # in the thread

    def listen(self) -> None:
        """Open the listener. Raises OSError if the port is taken."""
        if self._listener is not None:
            return
        listener = socket.socket(_family(self.host), socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((self.host, self.port))
            listener.listen(_BACKLOG)
            listener.setblocking(False)
        except OSError:
            listener.close()
            raise
        self._listener = listener
        self._selector.register(listener, _READ)

    def deafen(self) -> None:
        """Close the listener, so that connecting is refused, and all connections. Nobody else can take the port."""
        if self._listener is not None:
            self._selector.unregister(self._listener)
            with suppress(OSError):  # some systems do without
                self._listener.shutdown(socket.SHUT_RDWR)  # for a child that was forked just now and still has it, too
            self._listener.close()
            self._listener = None
        for connection in list(self.service.connections):
            self.service.drop(connection)

    def forget(self, connection: Connection) -> None:
        """Take a connection that is about to be closed out of the selector."""
        with suppress(KeyError):
            self._selector.unregister(connection.sock)

    def _run(self) -> None:
        try:
            while self._running:
                self._turn()
        finally:
            self.deafen()
            self._ended.set()
            self._answer_calls()

    def _turn(self) -> None:
        if self.paused:
            self._woken.setblocking(True)
            self._woken.recv(4096)
            self._woken.setblocking(False)
            self._answer_calls()
            return
        service = self.service
        for key, events in self._selector.select(max(0.0, service.next_tick() - time.monotonic())):
            connection = key.data
            if connection is None:
                self._system(key.fileobj)
            elif events & _READ and not connection.closed:
                self._read(connection)
        if not self.paused:
            now = time.monotonic()
            service.tick(now)
            touched = list(service.dirty)
            service.flush()
            for connection in touched:
                self._attend(connection)

    def _read(self, connection: Connection) -> None:
        try:
            self.service.read(connection)
        except Exception:  # a mistake of ours, which ends one connection and not the server
            log.exception("a request of %s failed", connection.client)
            self.service.drop(connection)

    def _system(self, sock: Any) -> None:
        if sock is self._woken:
            with suppress(BlockingIOError):
                self._woken.recv(4096)
            self._answer_calls()
        elif self._listener is not None:
            self._accept(self._listener)

    def _answer_calls(self) -> None:
        while True:
            try:
                function, future = self._calls.get_nowait()
            except Empty:
                return
            try:
                future.set_result(function())
            except BaseException as error:  # noqa: BLE001 - it is the caller's
                future.set_exception(error)

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(128):
            try:
                sock, (address, port, *_) = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE) or not more_files():
                    time.sleep(0.01)  # it stays readable, and would keep the thread spinning
                    return
                continue
            connection = Connection(sock, address, port, self.service.dirty)
            self.service.connected(connection)
            self._selector.register(sock, _READ, connection)

    def _attend(self, connection: Connection) -> None:
        """Wait for what the connection needs now: room to write, something to read."""
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


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _reserve(host: str, port: int) -> tuple[socket.socket | None, int]:
    """
    Pick a port, and keep it from everybody else for the times when nothing listens on it.

    A bound socket that never listens does: Linux gives the port to no outgoing connection, and connecting is refused.
    Where two sockets cannot have one port before it is listened on (macOS), there is no such protection.
    """
    keeper = socket.socket(_family(host), socket.SOCK_STREAM)
    try:
        keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        keeper.bind((host, port))
        port = keeper.getsockname()[1]
        with socket.socket(_family(host), socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError:
                keeper.close()
                return None, port
    except OSError:
        keeper.close()
        raise
    return keeper, port
