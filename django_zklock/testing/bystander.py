"""
Knows how to stand in a lock's queue as somebody else: another client, with a session of its own.

It speaks through plain kazoo, so that what a test sees of a queue does not depend on the code it tests.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionLoss, KazooException
from kazoo.handlers.threading import KazooTimeoutError

from django_zklock.queue import guids
from django_zklock.queue.nodes import Kind, Payload, prefix

PATIENCE = 2.0  # seconds for an answer; a test may have stalled the server
RETRY = {"max_tries": -1, "delay": 0.05, "backoff": 1, "max_delay": 0.1}  # seconds; it is wanted soon after a fault

logger = logging.getLogger("django_zklock.testing.bystander")
logger.setLevel(logging.ERROR)  # it is cut off on purpose, and need not tell


class Bystander:
    """A client that connects when it is first needed. For use by one test, in any of its threads."""

    def __init__(self, hosts: str) -> None:
        self._hosts = hosts
        self._client: KazooClient | None = None

    def enter(self, directory: str, what: str, kind: Kind = Kind.LOCK, limit: int = 0) -> str:
        """Take a place in the queue of this directory; return the path of the node."""
        guid = guids.new(guids.Mark.OWN)  # any other would be one of Curator's, which does not go with all kinds
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
            node: str = create.get(timeout=PATIENCE)
        except (KazooException, KazooTimeoutError) as error:
            raise TimeoutError(f"the server lets no other client in, so nobody can be at {directory}") from error
        return node

    def leave(self, node: str) -> None:
        """Give the place up; where a test has cut this client off, as soon as it is back."""
        client = self._client
        deadline = time.monotonic() + PATIENCE
        while client is not None and time.monotonic() < deadline:
            connected = client.connected
            reply = client.delete_async(node)
            if not connected:
                return  # kazoo sends it once there is a connection
            try:
                reply.get(timeout=PATIENCE)
            except ConnectionLoss:
                continue
            except (KazooException, KazooTimeoutError):
                pass  # it is gone already, or goes with the session
            return

    def read(self, paths: Sequence[str]) -> list[Payload | None]:
        """Return what contenders say of themselves; None for each that cannot be read now."""
        if self._client is not None and not self._client.connected:
            return [None] * len(paths)  # a test has cut it off, and the requests would wait for the connection
        try:
            replies = [self._connected().get_async(path) for path in paths]
        except KazooTimeoutError:
            return [None] * len(paths)
        deadline = time.monotonic() + PATIENCE
        return [_payload(reply, deadline) for reply in replies]

    def close(self) -> None:
        """End the session, and so give up every place."""
        client, self._client = self._client, None
        if client is not None:
            client.stop()
            client.close()

    def _connected(self) -> KazooClient:
        if self._client is None:
            client = KazooClient(self._hosts, timeout=10, connection_retry=RETRY, logger=logger)
            try:
                client.start(timeout=PATIENCE)
            except BaseException:
                client.stop()
                client.close()
                raise
            self._client = client
        return self._client


def _payload(reply: Any, deadline: float) -> Payload | None:
    try:
        return Payload.decode(reply.get(timeout=max(0.0, deadline - time.monotonic()))[0])
    except (KazooException, KazooTimeoutError):
        return None
