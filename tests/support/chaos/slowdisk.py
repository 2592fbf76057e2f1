"""Servers with a slow disk: their fsync takes as long as the test says."""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from support.chaos.preload import compiled, preloading

if TYPE_CHECKING:
    from typing_extensions import Self


class SlowDisk:
    """
    The disk of an ensemble's servers, for the length of a with block.

        with SlowDisk() as disk, Ensemble(nodes=3, fsync=True, env=disk.env) as ensemble:
            disk.slow(1.2)    # every server takes 1.2 s and more for each transaction
            disk.fast()       # as ever; a wait that is going on ends

    An ensemble without `fsync=True` does not care for its disk, and is never slow.
    """

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="zklock-slowdisk-")
        self._flag = Path(self._folder.name) / "slow"
        self.env = {**preloading(compiled(Path(__file__).with_name("slowfsync.c"))), "SLOWFSYNC": str(self._flag)}

    def slow(self, seconds: float) -> None:
        """Have each fsync wait for so long first."""
        write_whole(self._flag, f"{seconds:f}")

    def fast(self) -> None:
        """End it."""
        self._flag.unlink(missing_ok=True)

    def waits(self) -> Counter[int]:
        """How many calls had to wait until now, by process id."""
        log = self._flag.with_suffix(".log")
        return Counter(int(line) for line in log.read_text().splitlines()) if log.exists() else Counter()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *about: object) -> None:
        self.fast()
        self._folder.cleanup()


def write_whole(path: Path, text: str) -> None:
    """Write a file that others read at any time: they see it with all of the text, or not at all."""
    draft = path.with_name(f".{path.name}.draft")
    draft.write_text(text)
    os.replace(draft, path)
