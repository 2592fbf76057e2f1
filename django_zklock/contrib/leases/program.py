"""The process of a coordinator: it takes over, serves, renews its certificate, and ends at a signal."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import resource
import signal
import threading
from collections.abc import Callable
from functools import partial
from typing import Final

from django_zklock import conf
from django_zklock.conf import url
from django_zklock.contrib.leases.access import Access
from django_zklock.contrib.leases.certificate import Certificate
from django_zklock.contrib.leases.coordinator import Coordinator
from django_zklock.contrib.leases.options import current
from django_zklock.contrib.leases.service import Server
from django_zklock.contrib.leases.state import StateFile
from django_zklock.contrib.leases.takeover import Takeover
from django_zklock.management.output import Output, discard, write_line

REFRESH_EVERY: Final = 5.0
"""Seconds between two looks for a renewed certificate."""
WAITING: Final = "Waiting for the end of those that are held. Signal again to end them now."
PASSED_ON: Final = "Those that are held go on in the next process with this state file."
EVERYWHERE: Final = ("", "0.0.0.0", "::")  # noqa: S104 - hosts that no client can connect to


def _say(out: Output, text: str) -> None:
    """Write a line, if it can be written: a full disk, or a pipe that nobody reads, must not end leases."""
    try:
        write_line(out, text)
    except OSError:
        with contextlib.suppress(OSError):  # nor may a process with too many open files
            discard(out)
    except AttributeError:  # Django writes to None if the output was closed at the start
        pass


def serve(out: Output, options: argparse.Namespace) -> None:
    """Serve with the options of the sub-command until a signal ends it. Raises OSError."""
    state = StateFile(options.state, conf.current().base, partial(_say, out)) if options.state else None
    asyncio.run(_serve(out, options, state))


async def _serve(out: Output, options: argparse.Namespace, state: StateFile | None) -> None:
    _allow_connections()
    coordinator, access = Coordinator(state), Access(current())
    certificate = None
    if options.tls_certificate:
        certificate = Certificate(options.tls_certificate, options.tls_key, options.tls_client_ca)
    server = Server(coordinator, access, options.grpc, certificate)
    coordinator.advertise(_reached(options, options.grpc, server.port))
    _refresh_on_hangup(certificate)
    try:
        if state is not None:
            await Takeover(state, coordinator, partial(_say, out)).run()
        await _serve_until_drained(out, coordinator, server)
    finally:  # after an error, too: the leases end with this process, or go on in the next one
        await coordinator.stop()
        coordinator.pass_on()


def _refresh_on_hangup(certificate: Certificate | None) -> None:
    """Look for a renewed certificate from time to time, and at SIGHUP, on a thread that a slow disk may stop."""
    hangup = threading.Event()
    _on_signal(signal.SIGHUP, hangup.set)
    if certificate is not None:
        refresh = partial(_refresh, certificate, hangup)
        threading.Thread(target=refresh, name="zklock-certificate", daemon=True).start()


def _refresh(certificate: Certificate, hangup: threading.Event) -> None:
    while True:
        hangup.wait(REFRESH_EVERY)
        hangup.clear()
        certificate.refresh()


def _on_signal(number: signal.Signals, callback: Callable[[], object]) -> None:
    with contextlib.suppress(RuntimeError, ValueError):  # outside the main thread; see `core.execution.signals`
        asyncio.get_running_loop().add_signal_handler(number, callback)


async def _serve_until_drained(out: Output, coordinator: Coordinator, server: Server) -> None:
    signals: asyncio.Queue[None] = asyncio.Queue()
    for number in (signal.SIGTERM, signal.SIGINT):
        _on_signal(number, partial(signals.put_nowait, None))
    await server.start()
    _say(out, f"gRPC is served on port {server.port}. The id of this coordinator is {coordinator.id}.")
    await signals.get()
    _say(out, f"No more leases are granted. {PASSED_ON if coordinator.has_successor else WAITING}")
    await server.announce_end()
    drain, hurry = asyncio.create_task(coordinator.drain()), asyncio.create_task(signals.get())
    await asyncio.wait((drain, hurry), return_when=asyncio.FIRST_COMPLETED)
    await coordinator.stop()
    await server.stop()
    _say(out, "Stopped.")


def _reached(options: argparse.Namespace, served: str, port: int) -> str:
    """Return the address by which clients reach what is served there; empty if that is not known."""
    host = options.advertise or served.rpartition(":")[0].strip("[]")
    return "" if host in EVERYWHERE else url.host_port(host, port)


def _allow_connections() -> None:
    """Open as many files as this process may: each client has a connection, and the usual limit is 1024."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
