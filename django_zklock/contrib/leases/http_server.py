"""The HTTP server of the coordinator: uvicorn, with limits on connections, and with the clients' certificates."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
from collections.abc import Mapping
from typing import Any, Final

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from django_zklock.contrib.leases.certificate import Certificate
from django_zklock.contrib.leases.http import HttpApplication

REQUEST_TIMEOUT: Final = 20.0
"""Seconds in which a connection must bring a complete request: from its start, or from the last response."""
INCOMPLETE: Final = (h11.IDLE, h11.SEND_BODY)  # states of a client that owes the server a request, or its rest
MOST_CONNECTIONS: Final = 20_000
END_TIMEOUT: Final = 1  # seconds for responses that are under way at the end


class Protocol(H11Protocol):
    """One connection."""

    def connection_made(self, transport: Any) -> None:
        """Begin to wait for a request."""
        super().connection_made(transport)
        # Without it, a response takes 40 ms: head and body are sent apart (Nagle's algorithm, delayed acknowledgement).
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.app_state = {"certificate_names": _names(transport.get_extra_info("peercert") or {})}
        self._timer = self.loop.call_later(REQUEST_TIMEOUT, transport.abort)  # unless a complete request comes

    def data_received(self, data: bytes) -> None:
        """Receive a part of a request."""
        super().data_received(data)
        if self.conn.their_state not in INCOMPLETE:
            self._timer.cancel()

    def on_response_complete(self) -> None:
        """Begin to wait for the next request, or for the rest of the last one."""
        super().on_response_complete()
        self._timer.cancel()
        if self.conn.their_state in INCOMPLETE:
            self._timer = self.loop.call_later(REQUEST_TIMEOUT, self.transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        self._timer.cancel()
        super().connection_lost(exc)


def _names(certificate: Mapping[str, Any]) -> list[str]:
    """Return the common names and the subject alternative names in a certificate that TLS has checked."""
    subject = [value for part in certificate.get("subject", ()) for name, value in part if name == "commonName"]
    return [*subject, *(value for _, value in certificate.get("subjectAltName", ()) if isinstance(value, str))]


class _Connection(socket.socket):
    """A connection that its listener counts until it is closed."""

    listener: _Listener

    def close(self) -> None:
        self.listener.connections.discard(self)
        super().close()


class _Listener(socket.socket):
    """Accepts connections while few enough are open. One counts also before its TLS handshake is done."""

    def __init__(self, fileno: int) -> None:
        super().__init__(fileno=fileno)
        self.connections = set[_Connection]()

    def accept(self) -> tuple[socket.socket, Any]:
        """Raise ConnectionAbortedError, which asyncio expects here, if there are too many."""
        accepted, address = super().accept()
        if len(self.connections) >= MOST_CONNECTIONS:
            accepted.close()
            raise ConnectionAbortedError
        connection = _Connection(fileno=accepted.detach())
        connection.listener = self
        self.connections.add(connection)
        return connection, address


class _Server(uvicorn.Server):
    """Uvicorn's server for one listener. Looked up in uvicorn 0.30 and 0.54."""

    def capture_signals(self) -> contextlib.nullcontext[None]:  # type: ignore[override]
        """Leave the signals to this program."""
        return contextlib.nullcontext()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen as uvicorn does, but with a limit of its own for the TLS handshake."""
        assert sockets is not None
        tls = self.config.ssl
        listening = await asyncio.get_running_loop().create_server(
            functools.partial(Protocol, self.config, self.server_state, self.lifespan.state),
            sock=sockets[0],
            backlog=self.config.backlog,
            ssl=tls,
            ssl_handshake_timeout=REQUEST_TIMEOUT if tls else None,
        )
        self.servers, self.started = [listening], True


class HttpServer:
    """Serves the application at one address."""

    def __init__(self, application: HttpApplication, address: str, certificate: Certificate | None) -> None:
        host, _, port = address.rpartition(":")
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = _Listener(socket.create_server((host.strip("[]"), int(port)), family=family).detach())
        self.port: int = self._listener.getsockname()[1]
        config = uvicorn.Config(
            application,
            http=Protocol,
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="error",  # a warning about each invalid request could fill the log
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=int(REQUEST_TIMEOUT),
            timeout_graceful_shutdown=END_TIMEOUT,
        )
        config.load()
        if certificate is not None:
            config.ssl = certificate.context
        self._server = _Server(config)

    async def serve(self) -> None:
        """Serve until `stop` is called. Ends otherwise only by an error."""
        await self._server.serve([self._listener])

    def stop(self) -> None:
        """End as soon as the responses that are under way are sent."""
        self._server.should_exit = True
