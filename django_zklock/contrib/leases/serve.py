"""Run a lock coordinator: programs in any language acquire locks through it, by gRPC."""

from __future__ import annotations

import argparse
import contextlib
import ipaddress
import re
import secrets
from pathlib import Path
from typing import Final

from django_zklock.conf import url
from django_zklock.contrib.leases import options as lease_options
from django_zklock.contrib.leases.access import hash_of
from django_zklock.management.exit_codes import ExitCode, failure
from django_zklock.management.output import Output, write_line

EXAMPLES: Final = ("", "--grpc 127.0.0.1:50051")
DEFAULT_GRPC: Final = "127.0.0.1:50051"
LAST_PORT: Final = 65535


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
        from django_zklock.contrib.leases import program  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise failure(f"The coordinator needs gRPC: pip install django-zklock[grpc]. ({error})") from error
    if options.new_token:
        token = secrets.token_urlsafe(32)
        write_line(out, f"Token, for the client: {token}")
        write_line(out, f"Hash, for TOKENS in the settings: {hash_of(token)}")
        return
    _check(options)
    try:
        program.serve(out, options)
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
