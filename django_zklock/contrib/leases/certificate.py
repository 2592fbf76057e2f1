"""The TLS files of a coordinator, which may be renewed while it serves."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any, NamedTuple

import grpc

from django_zklock.core.log import Logger

logger = Logger("django_zklock.leases")


class _Files(NamedTuple):
    """The content of the files."""

    certificate: bytes
    key: bytes
    client_ca: bytes | None


class Certificate:
    """
    The certificate of a coordinator, its key, and the authority of its clients, if they need a certificate.

    New connections get what `refresh` has read last. Raises OSError if the files cannot be used.
    """

    def __init__(self, certificate: Path, key: Path, client_ca: Path | None) -> None:
        self._paths = (certificate, key, client_ca)
        self._files = self._served = self._read()
        self._problem = ""  # of the last look
        self.credentials = grpc.dynamic_ssl_server_credentials(
            _configuration(self._files),
            self._renewed,
            require_client_authentication=client_ca is not None,
        )
        """The TLS side of a gRPC server."""

    def refresh(self) -> None:
        """Read the files again. If they cannot be used, go on with what was read before."""
        former, self._problem = self._problem, ""
        try:
            files = self._read()
        except OSError as error:
            self._problem = str(error)
            if self._problem != former:
                logger.warning("the renewed TLS certificate cannot be used; new connections get the old one: %s", error)
            return
        if files != self._files:
            self._files = files
            logger.info("new connections get the renewed TLS certificate")

    def _read(self) -> _Files:
        certificate, key, client_ca = self._paths
        pems = certificate.read_bytes(), key.read_bytes(), client_ca.read_bytes() if client_ca else None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            context.load_cert_chain(certificate, key, password="")  # without one, it would ask for it
            context.load_verify_locations(client_ca or certificate)
        except ssl.SSLError as error:  # gRPC would not say that it is them
            raise OSError(f"The certificate, its key or the clients' authority cannot be used: {error}") from error
        return _Files(*pems)

    def _renewed(self) -> Any:
        """Return the configuration if it is new. gRPC calls it for each connection, on a thread of its own."""
        files = self._files
        if files is self._served:
            return None
        self._served = files
        return _configuration(files)


def _configuration(files: _Files) -> Any:
    return grpc.ssl_server_certificate_configuration([(files.key, files.certificate)], files.client_ca)
