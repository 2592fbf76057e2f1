"""The one coordinator of this process, and the loop that it runs on."""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from django_zklock import conf
from django_zklock.contrib.leases.access import Access
from django_zklock.contrib.leases.coordinator import Coordinator
from django_zklock.zk import process

_Value = TypeVar("_Value")

STOP_TIMEOUT = 60.0  # seconds that the exit of a web worker may wait for its leases; they end long before


class Host:
    """A coordinator and its loop. Its methods may be called on any thread, and on any loop."""

    def __init__(self, coordinator: Coordinator, access: Access, loop: asyncio.AbstractEventLoop) -> None:
        self.coordinator = coordinator
        self.access = access
        self.pid = os.getpid()
        self._loop = loop

    async def run(self, call: Callable[..., Coroutine[Any, Any, _Value]], *args: Any) -> _Value:
        """Run `call(*args)` on the coordinator's loop. If this is cancelled, so is that."""
        if asyncio.get_running_loop() is self._loop:
            return await call(*args)
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(call(*args), self._loop))

    def stop(self) -> None:
        """Wait until no client can believe any longer that it has a lease of this process."""
        if self.pid == os.getpid():
            asyncio.run_coroutine_threadsafe(self.coordinator.stop(), self._loop).result(STOP_TIMEOUT)


_mutex = threading.Lock()
_host: Host | None = None  # guarded by _mutex for writing


def current() -> Host:
    """
    Return the host of this process; start one with a thread of its own if there is none.

    That is what happens in a web worker. Its leases end with it, and it does not exit before they have ended.
    """
    global _host
    host = _host
    if host is None or host.pid != os.getpid():
        with _mutex:
            host = _host
            if host is None or host.pid != os.getpid():
                host = _host = _start()
    return host


def use(host: Host | None) -> None:
    """Make this the host of this process."""
    global _host
    with _mutex:
        _host = host


def _start() -> Host:
    process.current()  # it registers its own exit first, so that the session ends after the leases
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="zklock-leases", daemon=True).start()

    async def start() -> Host:
        return Host(Coordinator(), Access(conf.current().leases, anybody=conf.debug()), loop)

    host = asyncio.run_coroutine_threadsafe(start(), loop).result()
    atexit.register(host.stop)
    return host
