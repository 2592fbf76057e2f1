"""Run a lock coordinator: programs in any language acquire locks through it, by gRPC or HTTP."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import secrets
import signal
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from django_zklock import conf
from django_zklock.conf import url
from django_zklock.management.exit_codes import ExitCode, failure
from django_zklock.management.output import Output, write_line

if TYPE_CHECKING:
    from django_zklock.contrib.leases.host import Host

DEFAULT_GRPC: Final = "127.0.0.1:50051"
LAST_PORT: Final = 65535


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add = parser.add_argument
    grpc = "where to serve gRPC (default: %(default)s)"
    add("--grpc", type=_address, default=DEFAULT_GRPC, metavar="HOST:PORT", help=grpc)
    add("--http", type=_address, metavar="HOST:PORT", help="where to serve HTTP, too; needs uvicorn")
    add("--tls-certificate", type=Path, metavar="FILE", help="the server's certificate (PEM)")
    add("--tls-key", type=Path, metavar="FILE", help="the key of that certificate (PEM)")
    add("--tls-client-ca", type=Path, metavar="FILE", help="clients need a certificate of this authority (PEM)")
    add("--insecure", action="store_true", help="serve other machines without TLS")
    add("--new-token", action="store_true", help="print a new token and its hash, and exit")


def run(out: Output, options: argparse.Namespace) -> None:
    """Serve until SIGTERM or SIGINT. The first one drains: it waits for the leases. The second one hurries."""
    try:
        from django_zklock.contrib.leases import access, service  # noqa: F401, PLC0415 - an extra
    except ImportError as error:
        raise failure(f"The coordinator needs gRPC: pip install django-zklock[grpc]. ({error})") from error
    if options.new_token:
        token = secrets.token_urlsafe(32)
        write_line(out, f"Token, for the client: {token}")
        write_line(out, f"Hash, for TOKENS in the settings: {access.hash_of(token)}")
        return
    _check(options)
    try:
        asyncio.run(_serve(out, options))
    except OSError as error:
        raise failure(str(error)) from error


def _check(options: argparse.Namespace) -> None:
    """Refuse addresses that other machines can reach without tokens or without TLS."""
    if bool(options.tls_certificate) != bool(options.tls_key):
        raise failure("Give --tls-certificate and --tls-key together.", ExitCode.USAGE)
    if options.tls_client_ca and not options.tls_certificate:
        raise failure("--tls-client-ca needs --tls-certificate and --tls-key.", ExitCode.USAGE)
    for address in filter(None, (options.grpc, options.http)):
        if url.is_loopback(address.rpartition(":")[0].strip("[]")):
            continue
        if not conf.current().leases.clients:
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


async def _serve(out: Output, options: argparse.Namespace) -> None:
    from django_zklock.contrib.leases import host as hosts  # noqa: PLC0415
    from django_zklock.contrib.leases.access import Access  # noqa: PLC0415
    from django_zklock.contrib.leases.coordinator import Coordinator  # noqa: PLC0415

    _allow_connections()
    host = hosts.Host(Coordinator(), Access(conf.current().leases, anybody=True), asyncio.get_running_loop())
    hosts.use(host)
    try:
        await _serve_until_drained(out, options, host)
    finally:
        await host.coordinator.stop()  # after an error, too: the leases end with this process


async def _serve_until_drained(out: Output, options: argparse.Namespace, host: Host) -> None:
    from django_zklock.contrib.leases.service import Server, server_credentials  # noqa: PLC0415

    credentials = None
    if options.tls_certificate:
        credentials = server_credentials(options.tls_certificate, options.tls_key, options.tls_client_ca)
    server = Server(host.coordinator, host.access, options.grpc, credentials)
    signals: asyncio.Queue[None] = asyncio.Queue()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, signals.put_nowait, None)
    await server.start()
    http = _start_http(out, options) if options.http else None
    if http is not None:
        http.add_done_callback(lambda _: signals.put_nowait(None))  # it failed: drain, and say so at the end
    write_line(out, f"gRPC is served on port {server.port}. The id of this coordinator is {host.coordinator.id}.")
    await signals.get()
    write_line(
        out, "No more leases are granted. Waiting for the end of those that are held. Signal again to end them now."
    )
    await server.announce_end()
    await _end(host, signals)
    await server.stop()
    if http is not None and http.done():
        http.result()
    write_line(out, "Stopped.")


def _allow_connections() -> None:
    """Open as many files as this process may: each client has a connection, and the usual limit is 1024."""
    try:
        import resource  # noqa: PLC0415 - not on Windows
    except ImportError:
        return
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def _end(host: Host, signals: asyncio.Queue[None]) -> None:
    drain, hurry = asyncio.create_task(host.coordinator.drain()), asyncio.create_task(signals.get())
    await asyncio.wait((drain, hurry), return_when=asyncio.FIRST_COMPLETED)
    hurry.cancel()
    if not drain.done():
        await host.coordinator.stop()
    await drain


def _start_http(out: Output, options: argparse.Namespace) -> asyncio.Task[None]:
    """Serve HTTP in this loop; return the task, which ends only by an error."""
    try:
        import uvicorn  # noqa: PLC0415 - optional
    except ImportError as error:
        raise failure(f"--http needs a server: pip install uvicorn. ({error})") from error
    from django_zklock.contrib.leases.application import application  # noqa: PLC0415

    host, _, port = options.http.rpartition(":")
    listener = socket.create_server((host.strip("[]"), int(port)))
    more: dict[str, Any] = {}
    if options.tls_certificate:
        more = {"ssl_certfile": options.tls_certificate, "ssl_keyfile": options.tls_key}
    server = uvicorn.Server(uvicorn.Config(application, log_level="warning", lifespan="off", **more))
    server.capture_signals = contextlib.nullcontext  # type: ignore[assignment, method-assign]  # they are ours
    write_line(out, f"HTTP is served on port {listener.getsockname()[1]}, at /locks/.")
    return asyncio.create_task(server.serve([listener]))
