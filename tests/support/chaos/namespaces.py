"""
A network namespace of its own for a run of the suite: firewall rules in it touch nothing else.

A process is put there by `command()` before it starts; from then on it and its children have a loopback of their own
and no other network. Root needs nothing for it; other users need user namespaces, which most systems allow.
"""

from __future__ import annotations

import fcntl
import functools
import os
import shutil
import socket
import struct
import subprocess
import sys
from collections.abc import Sequence
from typing import Final

#: Which namespace the run was started from, in the environment of a process that was put into another.
OUTSIDE: Final = "ZKLOCK_CHAOS_OUTSIDE"
#: Why nobody was put into another, for the reasons of skipped tests.
REFUSED: Final = "ZKLOCK_CHAOS_REFUSED"


class NotInside(RuntimeError):
    """This process is not in a namespace of its own, and must not touch a firewall."""


def inside() -> bool:
    """
    Tell whether this process is in a network namespace made for the run.

    The variable alone would not do: somebody may have it set outside, and lose the firewall of the machine.
    """
    return os.environ.get(OUTSIDE, "") not in ("", _current())


def why_not() -> str:
    """Return why this process is not in a namespace of its own, or an empty text."""
    if inside():
        return ""
    return os.environ.get(REFUSED) or "not in a network namespace of its own: run it with `make chaos`"


def require_inside() -> None:
    """Raise NotInside unless `inside()`."""
    if not inside():
        raise NotInside(why_not())


@functools.cache
def possible() -> str:
    """Try it out: return why a namespace cannot be made here, or an empty text."""
    if sys.platform != "linux":
        return f"{sys.platform} has no network namespaces"
    if shutil.which("unshare") is None:
        return "no network namespaces: there is no `unshare` (util-linux) on the PATH"
    return _try_out(_unshare())


def command(inner: Sequence[str]) -> list[str]:
    """Return the command that runs another in a namespace of its own, in place of itself (by exec)."""
    return [*_unshare(), *inner]


def on_host(name: str) -> list[str]:
    """Return what to put before a command, so that its process sees another name of the host."""
    return [*_unshare("--uts"), "sh", "-c", 'hostname "$0" && exec "$@"', name]


@functools.cache
def _unshare(kind: str = "--net") -> tuple[str, ...]:
    """Find the way in: the root of a container, say, may be allowed no more than other users are."""
    direct = ("unshare", kind)
    return direct if not _try_out(direct) else ("unshare", "--user", "--map-root-user", kind)


def _try_out(unshare: Sequence[str]) -> str:
    done = subprocess.run([*unshare, "true"], check=False, capture_output=True, text=True)
    return f"no network namespaces: {done.stderr.strip()}" if done.returncode else ""


def environment() -> dict[str, str]:
    """Return the variables that `command()` needs in addition to this process's environment."""
    return {OUTSIDE: _current()}


def set_up() -> None:
    """Bring the loopback of a new namespace up; to be called once, by the first process in it."""
    require_inside()
    flags_get, flags_set, up = 0x8913, 0x8914, 0x1  # SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = fcntl.ioctl(any_socket, flags_get, struct.pack("16sH14x", b"lo", 0))
        flags: int = struct.unpack("16sH14x", request)[1]
        fcntl.ioctl(any_socket, flags_set, struct.pack("16sH14x", b"lo", flags | up))


def _current() -> str:
    """Name the network namespace of this process."""
    return os.readlink("/proc/self/ns/net") if sys.platform == "linux" else ""
