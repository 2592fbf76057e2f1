"""Work under several locks at a time, taken as one: in random sets, named in random orders, again and again."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from support.chaos.history import Recorder
from support.chaos.store import Store
from support.chaos.subjects import Held, Lost, Refused, Subject


class RandomSets:
    """One owner's work."""

    def __init__(
        self,
        lock: Subject,
        recorder: Recorder,
        store: Path,
        ops: Iterator[int],
        keys: Sequence[str],
        chance: random.Random,
    ) -> None:
        self.store = Store(store)
        self.counts = {"granted": 0, "refused": 0, "lost": 0}
        self._lock = lock
        self._recorder = recorder
        self._ops = ops
        self._keys = keys
        self._chance = chance

    def once(self, timeout: float | None) -> None:
        """Take some of the locks, increment the counter of each, release them."""
        keys = self._chance.sample(self._keys, self._chance.randint(2, len(self._keys)))
        ops = {key: next(self._ops) for key in keys}
        for key, op in ops.items():
            self._recorder.write("invoke", op=op, key=key, timeout=timeout)
        granted: set[str] = set()
        try:
            with self._lock.block_all(keys, timeout) as held:
                for key in keys:
                    self._note("granted", ops, key, token=held[key].token, until=held[key].until())
                    granted.add(key)
                self._work(ops, held)
                for key in keys:
                    self._note("release", ops, key)
            self.counts["granted"] += 1  # and not lost
            for key in keys:
                self._note("released", ops, key, error="")
        except Refused as error:
            self.counts["refused"] += 1
            for key in keys:
                self._note("refused", ops, key, error=str(error), definite=True)
        except Lost as error:
            self.counts["lost"] += 1
            for key in keys:
                if key in granted:
                    self._note("lost", ops, key, reason=str(error))
                else:
                    self._note("refused", ops, key, error=str(error), definite=False)

    def _work(self, ops: Mapping[str, int], held: Mapping[str, Held]) -> None:
        """Read all counters, then write them all; each write is refused if there was a newer holder."""
        values = {key: self.store.claim(key, held[key].token) for key in ops}
        for key, value in values.items():
            self._note("claimed", ops, key, token=held[key].token, ok=value is not None)
        time.sleep(self._chance.uniform(0, 0.01))
        for key in ops:
            before = time.monotonic()
            held[key].check()
            self._note("valid", ops, key, t=before, until=held[key].until())
        for key, value in values.items():
            if value is not None:
                about: dict[str, Any] = {"token": held[key].token, "value": value + 1}
                self._note("writing", ops, key, **about)
                ok = self.store.write(key, held[key].token, value + 1)
                self._note("fenced", ops, key, ok=ok, **about)

    def _note(self, kind: str, ops: Mapping[str, int], key: str, *, t: float | None = None, **about: Any) -> None:
        self._recorder.write(kind, t=t, op=ops[key], key=key, **about)
