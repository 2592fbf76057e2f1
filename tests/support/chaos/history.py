"""Write down what processes did, each event as a line of JSON in one write, and read it back; times are monotonic."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeAlias

Event: TypeAlias = dict[str, Any]


class Recorder:
    def __init__(self, directory: Path, process: str) -> None:
        self.process = process
        self._file = os.open(directory / f"{process}.jsonl", os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o644)

    def write(self, kind: str, /, *, t: float | None = None, o: str | None = None, **fields: object) -> float:
        """Append an event, and return its time: that before a release, or after a grant, if it is not now."""
        moment = time.monotonic() if t is None else t
        owner = f"{self.process}/{o or threading.current_thread().name}"
        line = json.dumps({"t": moment, "p": self.process, "o": owner, "e": kind, **fields})
        os.write(self._file, line.encode() + b"\n")
        return moment

    def close(self) -> None:
        os.close(self._file)


def read(paths: Iterable[Path]) -> list[Event]:
    """Return the events of all these files in the order of their times; a torn last line is left out."""
    events: list[Event] = []
    for path in paths:
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                events.append(json.loads(line))
            except ValueError:
                continue  # the process was killed as it wrote
    return sorted(events, key=lambda event: float(event["t"]))
