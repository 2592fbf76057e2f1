"""Write down what processes did, each event as a line of JSON in one write, and read it back; times are monotonic."""

import json
import os
import threading
import time


class Recorder:
    def __init__(self, directory, process):
        self.process = process
        self._file = os.open(directory / f"{process}.jsonl", os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o644)

    def write(self, kind, /, *, t=None, o=None, **fields):
        """Append an event, and return its time: that before a release, or after a grant, if it is not now."""
        moment = time.monotonic() if t is None else t
        owner = f"{self.process}/{o or threading.current_thread().name}"
        line = json.dumps({"t": moment, "p": self.process, "o": owner, "e": kind, **fields})
        os.write(self._file, line.encode() + b"\n")
        return moment

    def close(self):
        os.close(self._file)


def read(paths):
    """Return the events of all these files in the order of their times; a torn last line is left out."""
    events = []
    for path in paths:
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                events.append(json.loads(line))
            except ValueError:
                continue  # the process was killed as it wrote
    return sorted(events, key=lambda event: float(event["t"]))
