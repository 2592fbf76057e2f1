"""The TLS files of a coordinator, which may be renewed while it serves."""

from __future__ import annotations

import os
import ssl
from pathlib import Path
from typing import Any, NamedTuple

import grpc

from django_zklock.core.log import Logger

logger = Logger("django_zklock.leases")


class _Read(NamedTuple):
    """The content of the files, for gRPC and for HTTP, was read at one time."""

    configuration: Any
    context: ssl.SSLContext


class Certificate:
    """
    The certificate of a coordinator, its key, and the authority of its clients, if they need a certificate.

    New connections get what `refresh` has read last. Raises OSError if the files cannot be used.
    """

    def __init__(self, certificate: Path, key: Path, client_ca: Path | None) -> None:
        self._certificate = certificate
        self._key = key
        self._client_ca = client_ca
        self._state: object = self._look()
        self._read = self._served = self._read_files()
        self.credentials = grpc.dynamic_ssl_server_credentials(
            self._read.configuration, self._renewed_configuration, require_client_authentication=client_ca is not None
        )
        """The TLS side of a gRPC server."""
        self.context = self._read.context
        """The TLS side of an HTTP server. It hands each connection on to the latest one."""
        self.context.sni_callback = self._hand_on

    def refresh(self) -> None:
        """Read the files if they have changed. If they cannot be used, go on with what was read before."""
        try:
            state = self._look()
            if state == self._state:
                return
            self._state = state
            self._read = self._read_files()
        except OSError as error:
            logger.warning("the renewed TLS certificate cannot be used; new connections get the old one: %s", error)
        else:
            logger.info("new connections get the renewed TLS certificate")

    def _look(self) -> object:
        """Return what differs after the files were written or replaced."""
        states = [os.stat(path) for path in (self._certificate, self._key, self._client_ca) if path is not None]
        return [(state.st_ino, state.st_mtime_ns, state.st_size) for state in states]

    def _read_files(self) -> _Read:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            context.load_cert_chain(self._certificate, self._key, password="")  # without one, it would ask for it
            context.load_verify_locations(self._client_ca or self._certificate)
        except ssl.SSLError as error:  # gRPC would not say that it is them
            raise OSError(f"The certificate, its key or the clients' authority cannot be used: {error}") from error
        if self._client_ca is not None:
            context.verify_mode = ssl.CERT_REQUIRED
        configuration = grpc.ssl_server_certificate_configuration(
            [(self._key.read_bytes(), self._certificate.read_bytes())],
            root_certificates=self._client_ca.read_bytes() if self._client_ca else None,
        )
        return _Read(configuration, context)

    def _renewed_configuration(self) -> Any:
        """Return the configuration if it is new. gRPC calls it for each connection, on a thread of its own."""
        if self._served is self._read:
            return None
        self._served = self._read
        return self._served.configuration

    def _hand_on(self, connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        connection.context = self._read.context
