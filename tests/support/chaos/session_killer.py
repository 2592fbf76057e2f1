"""
End the session of another process: take it over with a second client, and close it.

The victim learns of it as of an expiry. ZooKeeper gives a session to whoever knows its id and password, and derives the
password from the id (ZooKeeperServer.generatePasswd); the id stands in the Stat of each ephemeral node of the session.
So any session can be ended from here, that of a process one cannot talk to as well.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Final

from kazoo.client import KazooClient

SECRET: Final = 0xB3415C00  # ZooKeeperServer.superSecret
MASK: Final = 2**48 - 1
MULTIPLIER: Final = 0x5DEECE66D
INCREMENT: Final = 0xB


class NoSuchSession(LookupError):
    """The servers do not know the session, or the password is not its own: nothing was ended."""


def expire(hosts: str, session_id: int, password: bytes | None = None, *, timeout: float = 10.0) -> None:
    """
    End a session, within `timeout` seconds: the id and the password of kazoo's `client_id`, or the id alone.

    Without the password the servers have to be real ones, whose passwords can be derived. Raises NoSuchSession.
    """
    # The session may be that of the caller's own locks, whose loss stops the caller just then. The thief goes on.
    with ThreadPoolExecutor(1) as elsewhere:
        elsewhere.submit(_expire, hosts, session_id, password, timeout).result()


def _expire(hosts: str, session_id: int, password: bytes | None, timeout: float) -> None:
    thief = KazooClient(hosts=hosts, client_id=(session_id, password or password_of(session_id)), timeout=timeout)
    try:
        thief.start(timeout=timeout)
        taken = thief.client_id is not None and thief.client_id[0] == session_id
    finally:
        thief.stop()  # closes the session it has, be it the victim's or a new one
        thief.close()
    if not taken:
        raise NoSuchSession(f"no session {session_id:#x} at {hosts}, or not with this password")


def password_of(session_id: int) -> bytes:
    """Derive the password that a real server gave to a session: java.util.Random, seeded with the id."""
    state = ((session_id ^ SECRET) ^ MULTIPLIER) & MASK
    password = b""
    for _ in range(4):
        state = (state * MULTIPLIER + INCREMENT) & MASK
        password += (state >> 16).to_bytes(4, "little")
    return password
