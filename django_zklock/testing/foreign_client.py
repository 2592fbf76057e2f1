"""
Another client with its own session, for one contender in the queue of a lock.

It connects by plain kazoo, so that what a test sees does not depend on the session under test.
"""

from __future__ import annotations

import logging
import os
import socket
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException
from kazoo.handlers.threading import KazooTimeoutError

from django_zklock.core.log import Logger
from django_zklock.core.queue.nodes import Kind, Mark, Payload, new_guid, prefix

if TYPE_CHECKING:
    from django_zklock.testing.server import DevServer

REPLY_TIMEOUT = 2.0  # seconds to wait for a reply; a test may have stalled the server
# In seconds. It must reconnect soon after a fault.
RETRY = {"max_tries": -1, "delay": 0.05, "backoff": 1, "max_delay": 0.1}

logger = Logger("django_zklock.testing.foreign_client")
logger.setLevel(logging.ERROR)  # tests cut its connection on purpose


class ForeignClient:
    """The session of one contender. One thread of the test uses it."""

    def __init__(self, server: DevServer) -> None:
        self._server = server
        self._client = KazooClient(server.hosts, timeout=10, connection_retry=RETRY, logger=logger)
        self._session_id: int | None = None

    def create(self, directory: str, what: str, kind: Kind, limit: int) -> str:
        """Create the contender in this directory and return the path of its znode. Raises `TimeoutError`."""
        guid = new_guid(Mark.OWN)  # other guids are Curator's, which does not have all kinds
        payload = Payload(
            guid=guid,
            host=socket.gethostname(),
            pid=os.getpid(),
            thread="",
            what=what,
            since=datetime.now(UTC).isoformat(timespec="milliseconds"),
            template="",
            limit=limit,
        )
        path = f"{directory}/{prefix(guid, kind)}"
        try:
            self._client.start(timeout=REPLY_TIMEOUT)
            self._session_id = self._client.client_id[0]
            create = self._client.create_async(path, payload.encode(), ephemeral=True, sequence=True, makepath=True)
            node: str = create.get(timeout=REPLY_TIMEOUT)
        except (KazooException, KazooTimeoutError) as error:
            raise TimeoutError(
                f"the other client could not create a contender in {directory} within {REPLY_TIMEOUT:g} s"
            ) from error
        return node

    def release(self) -> None:
        """Let the server end the session, and so delete the contender. This works even while a fault lasts."""
        if self._session_id is not None:
            self._server.expire(self._session_id)

    def close(self) -> None:
        """End the threads of the client. During a fault this may take 10 s."""
        self._client.stop()
        self._client.close()
