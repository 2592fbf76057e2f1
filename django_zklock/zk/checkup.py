"""Knows how to try out an ensemble: what it answers, how fast, and what it lets this client do."""

from __future__ import annotations

import socket
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kazoo.protocol.serialization import Create2, Delete, Exists, GetACL, GetChildren

from django_zklock.zk.awaiting import Awaiting
from django_zklock.zk.client import TlsOptions
from django_zklock.zk.errors import NodeExists, NodeMissing, ZkError
from django_zklock.zk.gateway import Gateway
from django_zklock.zk.session import Session

FOLDER: Final = "!doctor"
"""Below the base; no key of a lock has this character. What is made there goes again."""

_EPHEMERAL = 1
_WORD_LIMIT = 64 * 1024  # characters of an answer to a word


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What was found; times in seconds. What could not be tried is None or empty."""

    connected: bool = False
    connect_time: float = 0.0
    server: str = ""
    """The one it is connected to, as "address:port"."""
    session_id: int = 0
    timeout: float = 0.0
    """Of the session, as negotiated."""
    problem: str = ""
    """Why the rest is missing."""
    reads: tuple[float, ...] = ()
    writes: tuple[float, ...] = ()
    """Each a transaction that a quorum carried out, and that changed nothing."""
    base_acl: tuple[tuple[str, str, str], ...] | None = None
    """Of the node above all locks: (scheme, id, permissions); None if there is no such node yet."""
    refused: str = ""
    """What this client may not do, though locks need it."""
    clock_ahead: float | None = None
    """Seconds by which the server's clock is ahead of this process's."""
    clock_error: float = 0.0
    """Seconds by which that may be wrong: half of the round trip."""


class Checkup:
    """
    One round of trials; it runs on the protocol's thread, one request after the other.

    `done` gets the findings once; `stop` ends it with what there is.
    """

    def __init__(self, session: Session, rounds: int, done: Callable[[Findings], object]) -> None:
        self._session = session
        self._done: Callable[[Findings], object] | None = done
        self._rounds = rounds
        self._began_at = time.monotonic()
        self._found: dict[str, Any] = {}
        self._reads: list[float] = []
        self._writes: list[float] = []
        self._folder = f"{session.options.base}/{FOLDER}"
        self._node = f"{self._folder}/{uuid.uuid4()}"
        self._gateway: Gateway

    def begin(self) -> None:
        """Begin as soon as there is a connection."""
        self._session.attached(Awaiting).call(self._on_connected)

    def _on_connected(self) -> None:
        self._gateway = self._session.attached(Gateway)
        self._found |= {
            "connected": True,
            "connect_time": time.monotonic() - self._began_at,
            "session_id": self._session.session_id or 0,
            "server": self._session.server,
            "timeout": self._session.timeout,
        }
        self._read()

    def stop(self) -> None:
        """End with what there is."""
        self._conclude("There was no time for the rest." if self._session.connected else self._session.explain())

    def _timed(self, times: list[float], then: Callable[[], None]) -> Callable[[Any], None]:
        sent_at = time.monotonic()

        def answered(answer: Any) -> None:
            if isinstance(answer, ZkError) and not isinstance(answer, NodeMissing):
                self._conclude(f"ZooKeeper did not answer: {answer}")
                return
            times.append(time.monotonic() - sent_at)
            then()

        return answered

    def _read(self) -> None:
        if len(self._reads) < self._rounds:
            self._session.send(Exists(self._session.options.base, None), self._timed(self._reads, self._read))
        else:
            self._write()

    def _write(self) -> None:
        if len(self._writes) < self._rounds:
            self._gateway.reach(self._timed(self._writes, self._write))
        else:
            self._session.send(GetACL(self._session.options.base), self._on_acl)

    def _on_acl(self, answer: Any) -> None:
        if isinstance(answer, ZkError):
            if not isinstance(answer, NodeMissing):
                self._found["refused"] = "read the access list of the node above all locks"
        else:
            acls, _ = answer
            self._found["base_acl"] = tuple((each.id.scheme, each.id.id, _letters(each.perms)) for each in acls)
        self._gateway.make_parents(self._folder, self._on_folder)

    def _on_folder(self, answer: Any) -> None:
        if isinstance(answer, ZkError) and not isinstance(answer, NodeExists):
            self._refused("create nodes below", answer)
            return
        sent_at = time.time()
        create = Create2(self._node, b"", self._session.options.acls(), _EPHEMERAL)
        self._session.send(create, lambda answer: self._on_made(answer, sent_at, time.time()))

    def _on_made(self, answer: Any, sent_at: float, heard_at: float) -> None:
        if isinstance(answer, ZkError):
            self._refused("create nodes below", answer)
            return
        _, stat = answer
        # The server takes the time when the request reaches the leader, somewhere between the two.
        self._found["clock_ahead"] = stat.ctime / 1000 - (sent_at + heard_at) / 2
        self._found["clock_error"] = (heard_at - sent_at) / 2 + 0.001
        self._session.send(GetChildren(self._folder, None), self._on_listed)

    def _on_listed(self, answer: Any) -> None:
        if isinstance(answer, ZkError):
            self._refused("list nodes below", answer)
            return
        self._session.send(Delete(self._node, -1), self._on_deleted)

    def _on_deleted(self, answer: Any) -> None:
        if isinstance(answer, ZkError) and not isinstance(answer, NodeMissing):
            self._refused("delete nodes below", answer)
            return
        self._session.send(Delete(self._folder, -1), lambda answer: self._conclude(""))

    def _refused(self, what: str, error: ZkError) -> None:
        self._found["refused"] = f"{what} {self._session.options.base} ({error})"
        self._conclude("")

    def _conclude(self, problem: str) -> None:
        done, self._done = self._done, None
        self._session.attached(Awaiting).call_off(self._on_connected)
        if done is not None:
            done(Findings(**self._found, problem=problem, reads=tuple(self._reads), writes=tuple(self._writes)))


def _letters(permissions: int) -> str:
    return "".join(letter for bit, letter in enumerate("rwcda") if permissions & 1 << bit)


def server_version(hosts: Sequence[tuple[str, int]], patience: float, tls: TlsOptions | None) -> str:
    """Return the version of the first server that tells it, by the word `srvr`; empty if none does."""
    for host, port in hosts:
        try:
            with socket.create_connection((host, port), patience) as sock:
                sock.settimeout(patience)
                speaking = sock if tls is None else tls.context().wrap_socket(sock, server_hostname=host)
                speaking.sendall(b"srvr")
                text = b""
                while len(text) < _WORD_LIMIT and (more := speaking.recv(4096)):
                    text += more
        except OSError:
            continue
        first = text.decode(errors="replace").partition("\n")[0]
        if first.startswith("Zookeeper version: "):
            return first.removeprefix("Zookeeper version: ").partition("-")[0].partition(",")[0].strip()
    return ""
