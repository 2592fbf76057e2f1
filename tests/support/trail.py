"""
Follow the messages of tasks through a Redis broker, by the commands that Redis receives.

A worker takes a message in two steps: BRPOP removes it from the queue, and HSET stores it in the hash `unacked`. From
there it is delivered again if the worker dies. A worker that is killed between the two steps loses the message.
"""

from __future__ import annotations

import re
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psutil

from support.brokers import Redis
from support.celeryapp import QUEUES
from support.zoo import eventually

SETTLED = 5.0  # seconds in which a worker that lives has stored what it has popped
LINE = re.compile(r'\+(?P<t>[0-9.]+) \[0 (?P<client>\S+)\] "(?P<command>\w+)" "(?P<key>[^"]*)"(?P<rest>.*)')
UUID = "([0-9a-f-]{36})"
TAG = re.compile(rf'delivery_tag\\": \\"{UUID}')
TASK = re.compile(rf'correlation_id\\": \\"{UUID}')
STORED_TAG = re.compile(rf' "{UUID}"')


@dataclass(frozen=True, slots=True)
class Step:
    """One change of a message's place, at a Unix time, by the client with this address."""

    t: float
    what: str
    client: str

    def __str__(self) -> str:
        return f"{self.t:.6f} {self.what} by {self.client}"


@dataclass(frozen=True, slots=True)
class Killed:
    """A worker that was killed: the addresses of its connections, and the Unix times of the kill and of their end."""

    name: str
    clients: frozenset[str]
    killed: float
    closed: float


class Trail:
    """Follow all messages for the length of a with block."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._killed: list[Killed] = []
        self._lost: dict[str, Killed] = {}  # by delivery tag
        # Written by the reader alone:
        self._steps: dict[str, list[Step]] = defaultdict(list)  # by delivery tag
        self._tags: dict[str, list[str]] = defaultdict(list)  # by task id
        self._asked: dict[str, float] = {}  # when a client last sent BRPOP, by its address
        self._stored: dict[str, float] = {}  # when a client last stored a message

    def __enter__(self) -> Trail:
        self._socket = socket.create_connection(("127.0.0.1", self._redis.port))
        self._socket.sendall(b"MONITOR\r\n")
        self._lines = self._socket.makefile(encoding="utf-8", errors="replace")
        assert self._lines.readline() == "+OK\n"
        self._reader = threading.Thread(target=self._read, name="trail", daemon=True)
        self._reader.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._reader.join()
        self._lines.close()
        self._socket.close()

    def _read(self) -> None:
        for line in self._lines:
            if match := LINE.match(line):
                self._note(float(match["t"]), match["client"], match["command"], match["key"], match["rest"])

    def _note(self, t: float, client: str, command: str, key: str, rest: str) -> None:
        if command == "BRPOP":
            self._asked[client] = t
        elif command in ("LPUSH", "RPUSH") and key in QUEUES:
            tag, task = TAG.search(rest), TASK.search(rest)
            if tag and task:  # all but Celery's own messages
                self._steps[tag[1]].append(Step(t, "queued", client))
                if tag[1] not in self._tags[task[1]]:
                    self._tags[task[1]].append(tag[1])
        elif command in ("HSET", "HDEL") and key == "unacked" and (tag := STORED_TAG.match(rest)):
            self._steps[tag[1]].append(Step(t, "stored" if command == "HSET" else "deleted", client))
            if command == "HSET":
                self._stored[client] = t

    @contextmanager
    def kill(self, name: str, pid: int, timeout: float) -> Iterator[None]:
        """
        Note the connections of a worker, which the with block kills, and wait until Redis has seen them close.

        Raises AssertionError if that takes longer than `timeout` seconds.
        """
        clients = frozenset(f"{c.laddr.ip}:{c.laddr.port}" for c in psutil.Process(pid).net_connections())
        killed = time.time()
        yield
        # A process that the worker has forked holds its connections open for a moment longer.
        eventually(lambda: not clients & self._redis.clients(), timeout, f"Redis still has clients of {name}")
        self._killed.append(Killed(name, clients, killed, time.time()))

    def lost(self, tasks: Iterable[str]) -> list[str]:
        """Return those of these tasks whose last message was popped by a worker that was killed before it stored it."""
        present = self._redis.tags()
        return [task for task in tasks if present.isdisjoint(self._tags[task]) and self._was_popped(task)]

    def _was_popped(self, task: str) -> bool:
        for tag in self._tags[task]:
            last = self._steps[tag][-1]
            if last.what == "queued" and tag not in self._lost and last.t < time.time() - SETTLED:
                taker = next((worker for worker in self._killed if self._may_have_popped(worker, last.t)), None)
                if taker is not None:
                    self._lost[tag] = taker
                    return True
        return False

    def _may_have_popped(self, worker: Killed, queued: float) -> bool:
        """Tell whether the last BRPOP of a killed worker may have popped a message; nothing was stored after it."""
        if worker in self._lost.values():
            return False
        asked = max((self._asked.get(client, 0.0) for client in worker.clients), default=0.0)
        stored = max((self._stored.get(client, 0.0) for client in worker.clients), default=0.0)
        return asked > stored and queued < worker.closed

    def tell(self, task: str) -> list[str]:
        """Tell where each message of a task was and is, a line each."""
        present = self._redis.tags()
        lines = []
        for tag in self._tags[task]:
            lines.append(f"message {tag}, {'in' if tag in present else 'no longer in'} Redis:")
            lines += [f"  {step}" for step in self._steps[tag]]
        return lines

    def tell_killed(self) -> list[str]:
        """Tell which workers were killed and what they did last, and whether messages can be restored now."""
        lines = []
        for worker in self._killed:
            lines.append(
                f"{worker.name} was killed at {worker.killed:.6f}, and Redis saw it go by {worker.closed:.6f}:"
            )
            for what, times in (("sent its last BRPOP", self._asked), ("stored its last message", self._stored)):
                lines += [f"  {times[client]:.6f} {what} by {client}" for client in worker.clients & times.keys()]
        return [*lines, f"unacked_mutex expires in {self._redis.mutex():g} s"]
