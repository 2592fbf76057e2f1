"""
Another client with its own session, which can join the queue of a lock.

It uses plain kazoo, so that what a test sees does not depend on the code under test.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionLoss, KazooException
from kazoo.handlers.threading import KazooTimeoutError

from django_zklock import clock
from django_zklock.queue import guids
from django_zklock.queue.nodes import Kind, Payload, prefix

REPLY_TIMEOUT = 2.0  # seconds to wait for a reply; a test may have stalled the server
# In seconds. It must reconnect soon after a fault.
RETRY = {"max_tries": -1, "delay": 0.05, "backoff": 1, "max_delay": 0.1}

logger = logging.getLogger("django_zklock.testing.foreign_client")
logger.setLevel(logging.ERROR)  # tests cut its connection on purpose


class ForeignClient:
    """A client that connects when it is first needed. Each test has its own; all threads of the test may use it."""

    def __init__(self, hosts: str) -> None:
        self._hosts = hosts
        self._client: KazooClient | None = None

    def create(self, directory: str, what: str, kind: Kind = Kind.LOCK, limit: int = 0) -> str:
        """Create a contender in this directory and return the path of its znode."""
        guid = guids.new(guids.Mark.OWN)  # other guids are Curator's, which does not have all kinds
        payload = Payload(
            guid=guid,
            host=socket.gethostname(),
            pid=os.getpid(),
            thread="",
            what=what,
            since=datetime.now(timezone.utc).isoformat(timespec="milliseconds"),
            template="",
            limit=limit,
        )
        path = f"{directory}/{prefix(guid, kind)}"
        try:
            create = self._connected().create_async(
                path, payload.encode(), ephemeral=True, sequence=True, makepath=True
            )
            node: str = create.get(timeout=REPLY_TIMEOUT)
        except (KazooException, KazooTimeoutError) as error:
            raise TimeoutError(
                f"the other client could not create a contender in {directory} within {REPLY_TIMEOUT:g} s"
            ) from error
        return node

    def delete(self, node: str) -> None:
        """Delete the contender. If a test has cut the connection, this happens after the client has reconnected."""
        client = self._client
        deadline = clock.now() + REPLY_TIMEOUT
        while client is not None and clock.now() < deadline:
            connected = client.connected
            reply = client.delete_async(node)
            if not connected:
                return  # kazoo sends it after it has reconnected
            try:
                reply.get(timeout=REPLY_TIMEOUT)
            except ConnectionLoss:
                continue
            except (KazooException, KazooTimeoutError):
                pass  # the node is gone already, or the server deletes it with the session
            return

    def read(self, paths: Sequence[str]) -> list[Payload | None]:
        """Return the payloads of contenders; None for each that cannot be read now."""
        if self._client is not None and not self._client.connected:
            return [None] * len(paths)  # the requests would wait until the client has reconnected
        try:
            replies = [self._connected().get_async(path) for path in paths]
        except KazooTimeoutError:
            return [None] * len(paths)
        deadline = clock.now() + REPLY_TIMEOUT
        return [_payload(reply, deadline) for reply in replies]

    def close(self) -> None:
        """End the session. The server deletes all its contenders."""
        client, self._client = self._client, None
        if client is not None:
            client.stop()
            client.close()

    def _connected(self) -> KazooClient:
        if self._client is None:
            client = KazooClient(self._hosts, timeout=10, connection_retry=RETRY, logger=logger)
            try:
                client.start(timeout=REPLY_TIMEOUT)
            except BaseException:
                client.stop()
                client.close()
                raise
            self._client = client
        return self._client


def _payload(reply: Any, deadline: float) -> Payload | None:
    try:
        return Payload.decode(reply.get(timeout=max(0.0, deadline - clock.now()))[0])
    except (KazooException, KazooTimeoutError):
        return None
