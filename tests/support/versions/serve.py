"""
The web process: `python -m support.versions.serve PORT`. It answers all that it has accepted when it is asked to end.

With `asgi` as a second argument, uvicorn serves the site.
"""

from __future__ import annotations

import signal
import sys
import threading
from socket import socket

import uvicorn
from django.core.asgi import get_asgi_application
from django.core.servers.basehttp import ThreadedWSGIServer, WSGIRequestHandler
from django.core.wsgi import get_wsgi_application

from support.versions.record import ready


class Server(ThreadedWSGIServer):
    """One thread for each request; all of them are awaited at the end."""

    daemon_threads = False
    block_on_close = True


class Handler(WSGIRequestHandler):
    """One request for each connection, as a balancer may send the next one to the other site."""

    protocol_version = "HTTP/1.0"


def main(port: int, *kind: str) -> None:
    """Serve until the end is asked for."""
    if kind:
        serve_asgi(port)
    else:
        serve_wsgi(port)


def serve_wsgi(port: int) -> None:
    application = get_wsgi_application()
    with Server(("127.0.0.1", port), Handler) as server:
        server.set_app(application)
        signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown).start())
        ready()
        server.serve_forever()


def serve_asgi(port: int) -> None:
    class Announced(uvicorn.Server):
        async def startup(self, sockets: list[socket] | None = None) -> None:
            await super().startup(sockets)
            ready()

    signal.signal(signal.SIGTERM, lambda *_: None)  # uvicorn sends itself the signal once more when it has ended
    # Without settings of uvicorn's own, its log has the form of the others.
    Announced(uvicorn.Config(get_asgi_application(), port=port, lifespan="off", log_config=None)).run()


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
