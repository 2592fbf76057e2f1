"""Run a lock coordinator: programs in any language acquire locks through it, by gRPC."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import ipaddress
import re
import resource
import secrets
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from django_zklock import conf
from django_zklock.conf import url
from django_zklock.contrib.leases import options as lease_options
from django_zklock.management.exit_codes import ExitCode, failure
from django_zklock.management.output import Output, discard, write_line

if TYPE_CHECKING:
    from django_zklock.contrib.leases.certificate import Certificate
    from django_zklock.contrib.leases.coordinator import Coordinator
    from django_zklock.contrib.leases.service import Server
    from django_zklock.contrib.leases.state import StateFile

EXAMPLES: Final = ("", "--grpc 127.0.0.1:50051")
DEFAULT_GRPC: Final = "127.0.0.1:50051"
LAST_PORT: Final = 65535
REFRESH_EVERY: Final = 5.0
"""Seconds between two looks for a renewed certificate."""
WAITING: Final = "Waiting for the end of those that are held. Signal again to end them now."
PASSED_ON: Final = "Those that are held go on in the next process with this state file."
EVERYWHERE: Final = ("", "0.0.0.0", "::")  # noqa: S104 - hosts that no client can connect to


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add those of this sub-command."""
    add = parser.add_argument
    grpc = "where to serve gRPC (default: %(default)s)"
    add("--grpc", type=_address, default=DEFAULT_GRPC, metavar="HOST:PORT", help=grpc)
    advertised = "the host by which clients reach this coordinator (default: the one that it serves at)"
    add("--advertise", type=_host, metavar="HOST", help=advertised)
    state = "a file by which the next process goes on with the leases of this one"
    add("--state", type=Path, metavar="FILE", help=state)
    add("--tls-certificate", type=Path, metavar="FILE", help="the server's certificate (PEM)")
    add("--tls-key", type=Path, metavar="FILE", help="the key of that certificate (PEM)")
    add("--tls-client-ca", type=Path, metavar="FILE", help="clients need a certificate of this authority (PEM)")
    add("--insecure", action="store_true", help="serve other machines without TLS")
    add("--new-token", action="store_true", help="print a new token and its hash, and exit")


def run(out: Output, options: argparse.Namespace) -> None:
    """
    Serve until SIGTERM or SIGINT. The first one drains: it waits for the leases. The second one hurries.

    With a state file, it leaves the leases to the next process instead.
    """
    try:
        from django_zklock.contrib.leases import access, service  # noqa: F401, PLC0415 - an extra
        from django_zklock.contrib.leases.state import StateFile  # noqa: PLC0415
    except ImportError as error:
        raise failure(f"The coordinator needs gRPC: pip install django-zklock[grpc]. ({error})") from error
    if options.new_token:
        token = secrets.token_urlsafe(32)
        write_line(out, f"Token, for the client: {token}")
        write_line(out, f"Hash, for TOKENS in the settings: {access.hash_of(token)}")
        return
    _check(options)
    try:
        state = StateFile(options.state, conf.current().base, functools.partial(_say, out)) if options.state else None
        asyncio.run(_serve(out, options, state))
    except OSError as error:
        raise failure(str(error)) from error


def _check(options: argparse.Namespace) -> None:
    """Refuse addresses that other machines can reach without tokens or without TLS."""
    if bool(options.tls_certificate) != bool(options.tls_key):
        raise failure("Give --tls-certificate and --tls-key together.", ExitCode.USAGE)
    if options.tls_client_ca and not options.tls_certificate:
        raise failure("--tls-client-ca needs --tls-certificate and --tls-key.", ExitCode.USAGE)
    address = options.grpc
    if url.is_loopback(address.rpartition(":")[0].strip("[]")):
        return
    if not lease_options.current().clients:
        raise failure(
            f"{address} can be reached from other machines, and there are no clients in the settings: anybody "
            'could acquire any lock. Add clients to ZKLOCK["LEASES"]["CLIENTS"], or serve on 127.0.0.1.'
        )
    if not options.tls_certificate and not options.insecure:
        raise failure(
            f"{address} can be reached from other machines, and tokens would travel in plain text. Give "
            "--tls-certificate and --tls-key, or --insecure if the network or a proxy encrypts."
        )


def _address(text: str) -> str:
    """Return an address that can be served; an argparse type."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > LAST_PORT:
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:PORT, such as {DEFAULT_GRPC}")
    return text


def _host(text: str) -> str:
    """Return a host without a port; an argparse type."""
    with contextlib.suppress(ValueError):
        return str(ipaddress.ip_address(text.strip("[]")))
    if not re.fullmatch(r"[\w.-]+", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a host. The port is that of --grpc")
    return text


def _say(out: Output, text: str) -> None:
    """Write a line, if it can be written: a full disk, or a pipe that nobody reads, must not end leases."""
    try:
        write_line(out, text)
    except OSError:
        with contextlib.suppress(OSError):  # nor may a process with too many open files
            discard(out)
    except AttributeError:  # Django writes to None if the output was closed at the start
        pass


async def _serve(out: Output, options: argparse.Namespace, state: StateFile | None) -> None:
    from django_zklock.contrib.leases.access import Access  # noqa: PLC0415 - as in `run`
    from django_zklock.contrib.leases.certificate import Certificate  # noqa: PLC0415
    from django_zklock.contrib.leases.coordinator import Coordinator  # noqa: PLC0415
    from django_zklock.contrib.leases.service import Server  # noqa: PLC0415
    from django_zklock.contrib.leases.takeover import Takeover  # noqa: PLC0415

    _allow_connections()
    coordinator, access = Coordinator(state), Access(lease_options.current())
    certificate = None
    if options.tls_certificate:
        certificate = Certificate(options.tls_certificate, options.tls_key, options.tls_client_ca)
    server = Server(coordinator, access, options.grpc, certificate)
    coordinator.advertise(_reached(options, options.grpc, server.port))
    _refresh_on_hangup(certificate)
    try:
        if state is not None:
            await Takeover(state, coordinator, functools.partial(_say, out)).run()
        await _serve_until_drained(out, coordinator, server)
    finally:  # after an error, too: the leases end with this process, or go on in the next one
        await coordinator.stop()
        coordinator.pass_on()


def _refresh_on_hangup(certificate: Certificate | None) -> None:
    """Look for a renewed certificate from time to time, and at SIGHUP, on a thread that a slow disk may stop."""
    hangup = threading.Event()
    _on_signal(signal.SIGHUP, hangup.set)
    if certificate is not None:
        refresh = functools.partial(_refresh, certificate, hangup)
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
        _on_signal(number, functools.partial(signals.put_nowait, None))
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
