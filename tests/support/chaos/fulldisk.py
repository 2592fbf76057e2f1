"""A small disk for one server's data, a tmpfs in our own mount namespace, that a test fills and frees."""

from __future__ import annotations

import errno
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from support.chaos.namespaces import require_inside
from support.chaos.preload import ToolFailed

if TYPE_CHECKING:
    from typing_extensions import Self

CHUNK = b"\0" * 65536


class FullDisk:
    """
    The disk of one server of an ensemble that keeps its data in `directory`, for the length of a with block.

        with FullDisk(tmp_path) as disk, Ensemble(directory=tmp_path, fsync=True) as ensemble:
            disk.fill()   # the next write ends the server
            disk.free()   # it can be started again

    Only the server's data are on it. Its log is elsewhere, and shows what happened.
    """

    def __init__(self, directory: Path) -> None:
        require_inside()
        self.path = directory / "server-1" / "data"
        self._ballast = self.path / "ballast"

    def fill(self) -> None:
        """Fill it to the last byte."""
        with self._ballast.open("ab", buffering=0) as ballast:
            try:
                while True:
                    ballast.write(CHUNK)
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise

    def free(self) -> None:
        """Give back what `fill` took."""
        self._ballast.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        self.path.mkdir(parents=True, exist_ok=True)
        _run("mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(self.path))
        return self

    def __exit__(self, *about: object) -> None:
        _run("umount", str(self.path))


def _run(*command: str) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise ToolFailed(f"{' '.join(command)}: {done.stderr.strip()}")
