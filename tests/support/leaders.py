"""Processes that are elected leader in turn, what each believed at which time, and a check of it."""

from __future__ import annotations

import contextlib
import itertools
import json
import signal
import subprocess
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from support.proxy import Proxy
from support.zoo import TESTS, Zoo, eventually

KEY = "lead"

# Each line is one look at its own lead, with the times before and after it: it was valid at some moment in between.
SCRIPT = """
import json, os, signal, sys, time
import django; django.setup()
from django_zklock import zk_leader
log = os.open(sys.argv[1], os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o644)
leader = zk_leader("lead", abort_on=sys.argv[2])
signal.signal(signal.SIGTERM, lambda *args: leader.stop())
def work(hold):
    while True:
        before = time.monotonic()
        leads = leader.is_leader
        after = time.monotonic()
        if leads:
            os.write(log, json.dumps([hold.token, before, after]).encode() + b"\\n")
        time.sleep(0.003)
leader.run(work)
"""


@dataclass(frozen=True, slots=True)
class Term:
    """One leadership, from the first to the last moment at which its process trusted it."""

    token: int
    leader: str
    begin: float  # on time.monotonic(), which all processes of a machine share
    end: float


class Candidate:
    """One process, with its own proxy between it and ZooKeeper."""

    def __init__(self, zoo: Zoo, name: str, home: Path, proxy: Proxy, session_timeout: float, abort_on: str) -> None:
        self.name = name
        self.proxy = proxy
        self.looks = home / f"{name}.jsonl"
        self.log = home / f"{name}.log"
        self._abort_on = abort_on
        self._env = zoo.environment(proxy.address, session_timeout)
        self.process: subprocess.Popen[bytes]
        self.start()

    def start(self) -> None:
        """Start it, or start it again."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", SCRIPT, str(self.looks), self._abort_on],
                cwd=TESTS,
                env=self._env,
                stdout=log,
                stderr=log,
            )

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        """Ask it to end; return its exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(10)

    def pause(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def terms(self) -> list[Term]:
        """Return its terms so far, without a line that its death has cut off."""
        looks: dict[int, list[tuple[float, float]]] = defaultdict(list)
        for line in self.looks.read_text().splitlines() if self.looks.exists() else ():
            with contextlib.suppress(ValueError):
                token, before, after = json.loads(line)
                looks[token].append((before, after))
        return [Term(token, self.name, times[0][1], times[-1][0]) for token, times in looks.items()]


class Candidates:
    """Several candidates, for the length of a `with` block."""

    def __init__(self, zoo: Zoo, home: Path, names: tuple[str, ...], *, session_timeout: float) -> None:
        self.zoo = zoo
        self._home = home
        self._names = names
        self._session_timeout = session_timeout
        self._stack = contextlib.ExitStack()
        self.all: dict[str, Candidate] = {}

    def __enter__(self) -> Candidates:
        for name, abort_on in zip(self._names, itertools.cycle(["suspended", "lost"]), strict=False):
            proxy = self._stack.enter_context(Proxy(self.zoo.address))
            self.all[name] = Candidate(self.zoo, name, self._home, proxy, self._session_timeout, abort_on)
        return self

    def __exit__(self, *error: object) -> None:
        for candidate in self.all.values():
            candidate.proxy.heal()
            candidate.kill()
            print(f"--- {candidate.name}\n{candidate.log.read_text(errors='replace')[-3000:]}")
        self._stack.close()

    def queue(self) -> list[Candidate]:
        """Return the processes in the queue, the leader first; also dead ones that are still there."""
        pids = {candidate.process.pid: candidate for candidate in self.all.values()}
        return [pids[payload.pid] for payload in self.zoo.payloads(KEY) if payload is not None and payload.pid in pids]

    def terms(self) -> list[Term]:
        """All leads so far, in the order of their tokens."""
        return sorted(
            (term for candidate in self.all.values() for term in candidate.terms()), key=lambda term: term.token
        )

    def wait_term(self, since: float, timeout: float) -> Term:
        """Wait for the first term that began after `since`."""
        return eventually(
            lambda: next((term for term in self.terms() if term.begin > since), None), timeout, "nobody leads"
        )  # type: ignore[return-value]


def assert_one_at_a_time(terms: list[Term]) -> None:
    """Fail if two processes trusted their leadership at the same time, or the earlier one after the later one."""
    for earlier, later in itertools.pairwise(terms):
        assert earlier.token < later.token, f"one token for two leads: {earlier}, {later}"
        assert earlier.end <= later.begin, f"two leaders at a time: {earlier}, {later}"
