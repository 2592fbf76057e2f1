"""
Histories of an imaginary lock that keeps its promises, while its holders are paused, killed, expired and robbed.

They test the checker: it may find nothing in them, however suspicious they look, and must find what is broken on
purpose.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

SESSION: Final = 4.0  # seconds
LEASE: Final = 0.4 * SESSION
FATES: Final = ("release", "release", "release", "reenter", "kill", "pause", "expire", "delete", "suspend", "strike")

Event = dict[str, Any]


@dataclass
class Owner:
    """One process with one thread, that wants the lock again and again."""

    process: str
    op: int = 0
    invoked: float = 0.0
    created: float = 0.0
    timeout: float = 0.0


def written(text: str) -> list[Event]:
    """
    Read a history as a test writes it: a line for each event, `time owner kind field=value ...`.

    `op` is 1 and `key` is "k" unless they are given; an owner is a process, or a process and a thread, `A/two`.
    """
    events: list[Event] = []
    for line in filter(None, map(str.strip, text.splitlines())):
        t, owner, kind, *fields = line.split()
        process = owner.partition("/")[0]
        about = {name: _value(value) for name, _, value in (field.partition("=") for field in fields)}
        event = {"t": float(t), "p": process, "o": owner if "/" in owner else f"{owner}/main", "e": kind}
        if owner == "nemesis":
            events.append({**event, "p": "driver", "e": "nemesis", "what": kind, **about})
        else:
            events.append({"op": 1, "key": "k", **event, **about})
    return events


def _value(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return text


class Simulation:
    """One lock, its queue, and what its users write down; `events` are sorted by time."""

    def __init__(self, seed: int, *, holds: int, owners: int = 4, fates: Sequence[str] = FATES, key: str = "k") -> None:
        self.events: list[Event] = []
        self.counter = 0
        self._chance = random.Random(seed)
        self._key = key
        self._free = 100.0  # from when on the lock may be granted; the clock begins anywhere
        self._token = 1000
        self._fates: dict[str, Callable[[Owner, float, int], float]] = {
            "release": self._release,
            "reenter": self._reenter,
            "kill": self._kill,
            "pause": self._pause,
            "expire": self._expire,
            "delete": self._delete,
            "suspend": self._suspend,
            "strike": self._strike,
        }
        self._owners = [Owner(f"P{number}") for number in range(owners)]
        for owner in self._owners:
            self._want(owner, self._free)
        granted = 0
        while granted < holds:
            granted += self._serve(self._chance.choice(fates))
        for owner in self._owners:
            self._write("refused", owner.invoked + self._short(), owner, error="stopped", definite=False)
        self.events.sort(key=lambda event: float(event["t"]))

    def _short(self) -> float:
        return self._chance.uniform(0.0005, 0.01)

    def _write(self, kind: str, t: float, owner: Owner | None, **about: object) -> None:
        process = "driver" if owner is None else owner.process
        event = {"t": t, "p": process, "o": f"{process}/main", "e": kind, **about}
        if owner is not None:
            event = {"op": owner.op, "key": self._key, **event}
        self.events.append(event)

    def _harm(self, what: str, t: float, **about: object) -> None:
        self._write("nemesis", t, None, what=what, **about)

    def _want(self, owner: Owner, after: float) -> None:
        """Call acquire some time after this; the node is created a little later."""
        owner.op += 1
        owner.invoked = after + self._short() + self._chance.choice([0.0, 0.0, self._chance.uniform(0, 2)])
        owner.created = owner.invoked + self._short()
        owner.timeout = self._chance.choice([0.0, 0.5, 5.0, 30.0])
        self._write("invoke", owner.invoked, owner, timeout=owner.timeout)

    def _serve(self, fate: str) -> bool:
        """Grant the lock to the first in the queue, or refuse it; tell whether it was granted."""
        owner = min(self._owners, key=lambda owner: owner.created)
        grant = max(owner.created, self._free) + self._short()
        if grant > owner.invoked + owner.timeout + 0.1:
            answered = owner.invoked + owner.timeout + self._short()
            interrupted = self._chance.random() < 0.3
            self._write("refused", answered, owner, error="Struck" if interrupted else "Busy", definite=not interrupted)
            if interrupted and self._chance.random() < 0.5:
                # Its contender came first in the queue before it was cleared away, and nobody knew.
                self._free = max(self._free, answered) + self._chance.uniform(0, 0.5)
            self._want(owner, answered)
            return False
        self._token += self._chance.randint(1, 9)
        self._free, back = self._hold(owner, grant, fate)
        self._want(owner, back)
        return True

    def _hold(self, owner: Owner, grant: float, fate: str) -> tuple[float, float]:
        """Play one hold; return when the lock is free, and when the owner goes on."""
        moment = grant + self._short()
        token = self._token if self._chance.random() < 0.9 else 0
        self._write("granted", moment, owner, token=token, until=moment + self._chance.uniform(0.5, 1) * LEASE)
        self._write("claimed", moment + 1e-4, owner, token=self._token, ok=True)
        for _ in range(self._chance.randint(0, 4)):
            moment += self._short()
            self._write("valid", moment, owner, until=moment + self._chance.uniform(0.5, 1) * LEASE)
        self._increment(owner, moment)
        free = self._fates[fate](owner, moment + 3e-4, token)
        mine = [event["t"] for event in self.events[-12:] if event["p"] == owner.process]
        return free, max([moment, *mine]) if fate != "kill" else free

    def _increment(self, owner: Owner, moment: float) -> None:
        self.counter += 1
        about = {"token": self._token, "value": self.counter}
        self._write("writing", moment + 1e-4, owner, **about)
        if self._chance.random() < 0.95:
            self._write("fenced", moment + 2e-4, owner, ok=self._chance.choice([True, True, None]), **about)

    # --- how a hold ends: each returns when the lock is free ----------------------------------------------------------

    def _give_back(self, owner: Owner, moment: float, answer: str = "released") -> float:
        gone = moment + self._short()
        self._write("release", moment, owner)
        self._write(answer, gone + self._short(), owner)
        return gone

    def _release(self, owner: Owner, moment: float, token: int) -> float:
        return self._give_back(owner, moment)

    def _reenter(self, owner: Owner, moment: float, token: int) -> float:
        outer = owner.op
        owner.op += 1
        self._write("invoke", moment, owner, timeout=0)
        moment += self._short()
        self._write("granted", moment, owner, token=token, until=moment + LEASE / 2, again=True)
        moment = self._give_back(owner, moment + self._short()) + 0.02
        inner, owner.op = owner.op, outer
        self._write("valid", moment, owner, until=moment + LEASE / 2)
        gone = self._give_back(owner, moment + self._short())
        owner.op = inner
        return gone

    def _kill(self, owner: Owner, moment: float, token: int) -> float:
        self._harm("kill", moment, target=owner.process)
        if self._chance.random() < 0.5:
            owner.op = 0  # its successor has its name, and counts from 0
        else:
            owner.process += "'"
        return moment + self._chance.uniform(LEASE + 0.1, SESSION)

    def _pause(self, owner: Owner, moment: float, token: int) -> float:
        length = self._chance.uniform(0.1, 2 * SESSION)
        self._harm("pause", moment, target=owner.process)
        self._harm("resume", moment + length, target=owner.process)
        moment += length + self._short()
        if length < LEASE / 2:
            self._write("valid", moment, owner, until=moment + LEASE / 2)
            return self._give_back(owner, moment + self._short())
        if self._chance.random() < 0.7:
            self._write("lost", moment, owner, reason="the lease is over")
        self._give_back(owner, moment + self._short(), self._chance.choice(["released", "release_failed"]))
        return moment - length + SESSION if length > SESSION else moment + 0.1

    def _expire(self, owner: Owner, moment: float, token: int) -> float:
        return self._rob(owner, moment, "expire", target=owner.process)

    def _delete(self, owner: Owner, moment: float, token: int) -> float:
        return self._rob(owner, moment, "delete", key=self._key, token=self._token)

    def _rob(self, owner: Owner, moment: float, what: str, **about: object) -> float:
        self._harm(what, moment, **about)
        gone = moment + self._chance.uniform(0, 0.05)
        if self._chance.random() < 0.5:
            self._harm("done", gone + 1e-4, of=what, **about)
        told = gone + self._chance.uniform(0.001, 0.9)
        while (moment := moment + self._chance.uniform(0.01, 0.3)) < told:
            self._write("valid", moment, owner, until=moment + LEASE)
        self._write("lost", told, owner, reason="gone")
        self._give_back(owner, told + self._short(), "release_failed")
        return gone

    def _suspend(self, owner: Owner, moment: float, token: int) -> float:
        self._harm("cut", moment, target=owner.process)
        self._write("lost", moment + 0.01, owner, reason="suspended")
        return self._give_back(owner, moment + 0.02)

    def _strike(self, owner: Owner, moment: float, token: int) -> float:
        """A signal ends the block; when it was left is not known, only that it was after the last check."""
        self._write("release", moment - 2e-4, owner)
        return moment + self._short()
