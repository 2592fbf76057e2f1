"""Servers with a slow disk: their fsync takes as long as the test says."""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from django_zklock.testing.ensemble import Server
from support.chaos.preload import ToolFailed, compiled, loads, preloading

if TYPE_CHECKING:
    from typing_extensions import Self

OWN_FLAG = "slow-fsync"  # in a server's working directory; slowfsync.c looks for it


class SlowDisk:
    """
    The disk of an ensemble's servers, for the length of a with block.

        with SlowDisk() as disk, Ensemble(nodes=3, fsync=True, env=disk.env) as ensemble:
            disk.slow(1.2)                   # every server takes 1.2 s and more for each transaction
            disk.slow(5, ensemble.leader)    # and this one 5 s
            disk.fast()                      # as ever; a wait that is going on ends

    An ensemble without `fsync=True` does not care for its disk, and is never slow.
    """

    def __init__(self) -> None:
        self._library = compiled(Path(__file__).with_name("slowfsync.c"))
        self._folder = tempfile.TemporaryDirectory(prefix="zklock-slowdisk-")
        self._flag = Path(self._folder.name) / "slow"
        self._own: set[Path] = set()
        self.env = {**preloading(self._library), "SLOWFSYNC": str(self._flag)}

    def slow(self, seconds: float, *servers: Server) -> None:
        """Have each fsync of these servers, or of all, wait for so long first. The longer of two demands counts."""
        for server in servers:
            if not loads(server.pid, self._library):
                raise ToolFailed(f"{server} runs without this disk: start its ensemble with env=disk.env")
        for flag in [server.directory / OWN_FLAG for server in servers] or [self._flag]:
            write_whole(flag, f"{seconds:f}")
            self._own.update({flag} - {self._flag})

    def fast(self, *servers: Server) -> None:
        """End it, for these servers or for all."""
        flags = [server.directory / OWN_FLAG for server in servers] or [self._flag, *self._own]
        for flag in flags:
            flag.unlink(missing_ok=True)
            self._own.discard(flag)

    def waits(self) -> Counter[int]:
        """How many calls had to wait until now, by process id."""
        log = self._flag.with_suffix(".log")
        return Counter(int(line) for line in log.read_text().splitlines()) if log.exists() else Counter()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.fast()
        self._folder.cleanup()


def write_whole(path: Path, text: str) -> None:
    """Write a file that others read at any time: they see it with all of the text, or not at all."""
    draft = path.with_name(f".{path.name}.draft")
    draft.write_text(text)
    os.replace(draft, path)
