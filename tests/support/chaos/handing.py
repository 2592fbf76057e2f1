"""
A process that hands locks over and adopts them, at random, and writes down when it was surely the owner.

Run as `python -m support.chaos.handing DIRECTORY WITHIN KEY...`, with the settings of a `Zoo` in the environment. A
text is passed on as a file of DIRECTORY/texts. Each line of its journal is an event: the kind, the key, the token, and
the time on a clock that all processes of the machine share.
"""

from __future__ import annotations

import contextlib
import os
import random
import sys
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import django

from django_zklock import Lock, zk_adopt, zk_lock
from django_zklock.exceptions import ZkLockError

STEP = 0.002  # seconds between two checks of an owner
MUCH = 0.01  # of the texts are lost, and as many are copied


@dataclass(frozen=True, slots=True)
class Period:
    """The time for which one owner has surely had a lock."""

    key: str
    path: str
    token: int
    begin: float
    end: float


@dataclass(slots=True)
class Journal:
    """The events of all processes."""

    periods: list[Period] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    @classmethod
    def read(cls, paths: Iterable[Path]) -> Journal:
        """Read the journals, of which the last line may be cut."""
        journal = cls()
        for path in paths:
            owned: dict[tuple[str, str, int], tuple[float, float]] = {}
            for line in path.read_text().splitlines():
                kind, _, rest = line.partition(" ")
                fields = rest.split()
                journal.counts[kind] += 1
                if kind != "owns" or not line.endswith(" ."):
                    continue
                key, znode, token, at, _ = fields
                hold, until = (key, znode, int(token)), float(at)
                owned[hold] = owned.get(hold, (until, until))[0], until
            journal.periods += [Period(*hold, *period) for hold, period in owned.items()]
        journal.periods.sort(key=lambda period: period.begin)
        return journal

    def of(self, key: str) -> list[Period]:
        """Return the periods of one lock, in their order."""
        return [period for period in self.periods if period.key == key]


class HandOvers:
    """Hands locks over, and adopts them."""

    def __init__(self, directory: Path, within: float, keys: list[str]) -> None:
        self._stop = directory / "stop"
        self._texts = directory / "texts"
        self._within = within
        self._keys = keys
        self._journal = (directory / f"{os.getpid()}.journal").open("a", buffering=1)

    def _note(self, kind: str, *fields: object) -> None:
        self._journal.write(" ".join(map(str, (kind, *fields, "."))) + "\n")

    def loop(self, step: Callable[[], object]) -> None:
        """Repeat a step until the end."""
        while not self._stop.exists():
            try:
                step()
            except ZkLockError as error:
                self._note(type(error).__name__, repr(str(error)))

    def _use(self, lock: Lock, chance: float) -> None:
        """Own a lock for a moment, and hand it over by chance."""
        with lock as hold:
            for _ in range(random.randrange(1, 5)):
                at = time.monotonic()
                hold.check()
                self._note("owns", hold.key, hold.path, hold.token, at)
                time.sleep(STEP)
            if random.random() < chance:
                text = hold.hand_over(within=self._within)
                self._note("given", hold.key)
                for _ in range(random.choices((0, 1, 2), (MUCH, 1 - 2 * MUCH, MUCH))[0]):
                    new = self._texts / f"{uuid.uuid4().hex}.new"
                    new.write_text(text)
                    new.rename(new.with_suffix(".text"))

    def give(self) -> None:
        """Acquire a lock, and hand it over."""
        self._use(zk_lock(random.choice(self._keys), timeout=30), 0.9)

    def adopt(self) -> None:
        """Adopt a lock, if there is a text."""
        texts = [path for path in self._texts.iterdir() if path.suffix == ".text"]
        if not texts:
            time.sleep(STEP)
            return
        path = random.choice(texts)
        mine = path.with_suffix(f".{os.getpid()}")
        with contextlib.suppress(FileNotFoundError):
            path.rename(mine)
            self._use(zk_adopt(mine.read_text(), timeout=10), 0.5)
            self._note("adopted")


def main() -> None:
    """Hand over and adopt, until this process is killed or the file `stop` is there."""
    django.setup()
    work = HandOvers(Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3:])
    steps = (work.give, work.adopt, work.adopt)
    threads = [threading.Thread(target=work.loop, args=[step], daemon=True) for step in steps]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
