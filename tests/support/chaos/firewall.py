"""
Packets that are lost, or answered with a reset: iptables rules, and only in namespaces of our own.

Each kind is a function that returns a `Fault`, which is in place for the length of a with block, or from `begin()` to
`end()`. A fault counts the packets that it hit.
"""

from __future__ import annotations

import functools
import itertools
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from support.chaos import namespaces
from support.chaos.preload import ToolFailed
from support.ensemble import Server

if TYPE_CHECKING:
    from typing_extensions import Self

#: Where the program is, or None. Debian leaves its directory off the PATH of those who are not root.
IPTABLES = shutil.which("iptables", path=os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"]))

_numbers = itertools.count(1)


class Fault:
    """Rules that are in place together. `begin` and `end` may be called again and again."""

    def __init__(self, what: str, *rules: str) -> None:
        self._what = what
        self._mark = f"zklock-{os.getpid()}-{next(_numbers)}"
        self._rules = [f"-m comment --comment {self._mark} {rule}".split() for rule in rules]
        self._placed: list[list[str]] = []
        self._before = 0  # packets hit while it was in place earlier

    def __repr__(self) -> str:
        return f"<{self._what}{'' if self._placed else ', not in place'}>"

    @property
    def hits(self) -> int:
        """How many packets met a rule, all the times together."""
        if not self._placed:
            return self._before
        ours = [line for line in _iptables("-v", "-S", "INPUT").splitlines() if self._mark in line.split()]
        return self._before + sum(int(count) for line in ours for count in re.findall(r" -c (\d+) \d+", line))

    def begin(self) -> None:
        """Put the rules in place. All of them are when this returns, and none if it raises."""
        if self._placed:
            return
        try:
            for rule in self._rules:
                _iptables("-I", "INPUT", *rule)
                self._placed.append(rule)
        except BaseException:
            self.end()
            raise

    def end(self) -> None:
        """Remove the rules. Dropped packets stay lost; TCP sends them again if both ends are still there."""
        self._before = self.hits
        while self._placed:
            _iptables("-D", "INPUT", *self._placed[-1])
            self._placed.pop()

    def __enter__(self) -> Self:
        self.begin()
        return self

    def __exit__(self, *about: object) -> None:
        self.end()


def blackhole(port: int) -> Fault:
    """
    Lose what comes from and goes to a port; neither end is told.

    With a client's own port (see `connection_of`) that is one connection, and a new one gets through; with a server's
    it is all of that server's clients.
    """
    return Fault(f"blackhole of port {port}", f"-p tcp --sport {port} -j DROP", f"-p tcp --dport {port} -j DROP")


def cut_link(follower: Server, leader: Server) -> Fault:
    """
    Lose what a follower and its leader send each other, over the connection that they have now.

    The follower finds out after syncLimit ticks, drops its clients and connects again, which ends the fault.
    """
    quorum = _quorum_port(leader)
    port = connection_of(follower.pid, [quorum])
    rules = [f"-p tcp --sport {port} --dport {quorum} -j DROP", f"-p tcp --sport {quorum} --dport {port} -j DROP"]
    return Fault(f"cut between follower {follower.number} and leader {leader.number}", *rules)


# --- whose port it is -------------------------------------------------------------------------------------------------


def connections_of(pid: int, server_ports: Collection[int]) -> list[int]:
    """Return the local ports of a process's open connections to any of these ports."""
    return sorted(
        connection.laddr.port
        for connection in psutil.Process(pid).net_connections("tcp")
        if connection.status == psutil.CONN_ESTABLISHED and connection.raddr and connection.raddr.port in server_ports
    )


def connection_of(pid: int, server_ports: Collection[int]) -> int:
    """Return the local port of a process's connection to these ports. Raises LookupError if it has none, or several."""
    established = connections_of(pid, server_ports)
    if len(established) != 1:
        raise LookupError(f"process {pid} has {len(established)} connections to ports {sorted(server_ports)}, not 1")
    return established[0]


def _quorum_port(leader: Server) -> int:
    """Read from a server's configuration where it listens for followers when it leads."""
    text = (leader.directory / "zoo.cfg").read_text()
    match = re.search(rf"^server\.{leader.number}=[^:]+:(\d+):", text, re.MULTILINE)
    if match is None:
        raise LookupError(f"{leader} is alone, and has no followers")
    return int(match[1])


# --- iptables ---------------------------------------------------------------------------------------------------------


@functools.cache
def why_not() -> str:
    """Return why there is no firewall to be used here, or an empty text."""
    if problem := namespaces.why_not():
        return problem
    if IPTABLES is None:
        return "there is no `iptables`"
    try:
        with Fault("trial", "-d 127.9.9.9 -j DROP") as trial:
            _ = trial.hits
    except ToolFailed as error:
        return str(error)
    return ""


def _iptables(*arguments: str) -> str:
    """Run iptables and return what it prints. Raises NotInside rather than touch the firewall of the machine."""
    namespaces.require_inside()
    if IPTABLES is None:
        raise ToolFailed("there is no `iptables`")
    # The older kind of iptables takes a lock in /run, where a user who is root in his namespace only may not write.
    network = os.stat("/proc/self/ns/net").st_ino
    lock = Path(tempfile.gettempdir()) / f"zklock-xtables-{network}.lock"
    done = subprocess.run(
        [IPTABLES, "--wait", *arguments],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "XTABLES_LOCKFILE": str(lock)},
    )
    if done.returncode:
        raise ToolFailed(f"iptables {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


#: For tests that place rules.
needs_firewall = pytest.mark.skipif(bool(why_not()), reason=why_not() or "a firewall is here")
