"""What processes of others write into their znodes when they wait for one lock and hold another."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Hashable
from dataclasses import replace

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from django_zklock.core.queue.deadlock import WaitsFor
from django_zklock.core.queue.nodes import Payload


class Waits:
    def __init__(self, client: KazooClient) -> None:
        self._client = client
        self._paths: defaultdict[Hashable, list[str]] = defaultdict(list)

    def joined(self, owner: Hashable, key: str, guid: str, path: str) -> None:
        """Say in all other znodes of this owner that it waits for this key. If it holds that, the queue says so."""
        wait = WaitsFor(key, guid, 1).fields()
        for other in self._paths[owner]:
            with contextlib.suppress(NoNodeError):
                payload = Payload.decode(self._client.get(other)[0])
                assert payload is not None
                self._client.set(other, replace(payload, waits_for=wait).encode())
        self._paths[owner].append(path)
