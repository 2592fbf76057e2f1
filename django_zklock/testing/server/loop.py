"""
Run the server's thread: a selector, the listener, the connections, and calls from other threads.

The loop accepts and reads, and measures time. The service decides what to answer.

It is no loop of asyncio. Where gevent has patched threads, that would run in the thread of the tests, and Django's ORM
refuses to work in a thread with a running loop.
"""

from __future__ import annotations

import errno
import logging
import selectors
import socket
import threading
import time
import warnings
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Final, TypeVar

from django_zklock.core import clock
from django_zklock.testing.server.connection import Connection
from django_zklock.testing.server.service import Service

T = TypeVar("T")

log = logging.getLogger(__name__)

_BACKLOG: Final = 4096


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
        self._selector = selectors.DefaultSelector()  # each socket with a function that is called when it is readable
        self._selector.register(self._woken, selectors.EVENT_READ, self._on_wake)
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
        self._selector.register(listener, selectors.EVENT_READ, partial(self._accept, listener))

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
        for key, _ in self._selector.select(service.next_tick() - clock.now()):
            key.data()
        service.tick(clock.now())
        service.flush()

    def _read(self, connection: Connection) -> None:
        try:
            self.service.read(connection)
        except Exception:  # a defect of the server ends one connection only
            log.exception("request of client %s failed", connection.client)
            self.service.drop(connection)

    def _on_wake(self) -> None:
        self._woken.recv(4096)
        self._run_calls()

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
        try:
            sock, (address, port, *_) = listener.accept()
        except OSError as error:  # the client has gone, or a fault has closed the listener
            if error.errno in (errno.EMFILE, errno.ENFILE):
                text = "The dev server has no file descriptors left for new connections. Raise the limit (`ulimit -n`)."
                warnings.warn(text, ResourceWarning, stacklevel=1)
                time.sleep(0.01)  # the listener stays readable, and the thread would spin
            return
        connection = Connection(sock, address, port, self.service.dirty, partial(self._selector.unregister, sock))
        self.service.connections.add(connection)
        self._selector.register(sock, selectors.EVENT_READ, partial(self._read, connection))


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
