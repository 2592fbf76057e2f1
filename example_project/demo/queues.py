"""Read the locks from outside, with plain kazoo: the contenders for an item, and all znodes."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from types import TracebackType

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

logging.getLogger("kazoo").setLevel(logging.ERROR)  # this client is cut off on purpose, and need not tell


@dataclass(frozen=True, slots=True)
class Contender:
    """One znode of a lock's queue, and the process that made it."""

    path: str
    pid: int


class Queues:
    """An independent client: what it reads does not depend on the code under test."""

    def __init__(self, hosts: str, base: str) -> None:
        self._client = KazooClient(hosts, timeout=10)
        self._base = base

    def __enter__(self) -> Queues:
        self._client.start(timeout=30)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._client.stop()
        self._client.close()

    def line(self, sku: str) -> list[Contender]:
        """Return the contenders for an item, the holder first."""
        directory = f"{self._base}/inventory/{sku}"
        line = []
        for name in sorted(self._children(directory), key=lambda name: int(name[-10:])):
            try:
                data, _ = self._client.get(f"{directory}/{name}")
            except NoNodeError:
                continue
            line.append(Contender(f"{directory}/{name}", int(json.loads(data)["pid"])))
        return line

    def exists(self, contender: Contender) -> bool:
        """Return whether a contender is still in the queue."""
        return self._client.exists(contender.path) is not None

    def left(self) -> list[str]:
        """Return all znodes below the root of the locks."""
        return self._below(self._base)

    def _below(self, path: str) -> list[str]:
        paths = []
        for name in self._children(path):
            paths += [f"{path}/{name}", *self._below(f"{path}/{name}")]
        return paths

    def _children(self, path: str) -> list[str]:
        try:
            return list(self._client.get_children(path))
        except NoNodeError:
            return []
