"""End any session: take it over by its id and password, which a real server derives from the id, and close it."""

import socket
import time
from concurrent.futures import ThreadPoolExecutor

from support.jute import OPS, Jute, boolean, buffer, integer, long

TIMEOUT = 10.0
SECRET = 0xB3415C00  # ZooKeeperServer.superSecret
MASK = 2**48 - 1
MULTIPLIER = 0x5DEECE66D
INCREMENT = 0xB


class NoSuchSession(LookupError):
    """The servers do not know the session, or the password is not its own: nothing was ended."""


def expire(hosts, session_id, password=None):
    """End a session. Without its password the servers have to be real ones. Raises NoSuchSession."""
    # The session may be that of the caller's own locks, whose loss stops the caller just then. The thief goes on.
    with ThreadPoolExecutor(1) as elsewhere:
        elsewhere.submit(_expire, hosts, session_id, password or password_of(session_id)).result()


def _expire(hosts, session_id, password):
    until, failed = time.monotonic() + TIMEOUT, OSError("no server was asked")
    unclear = False  # a server may have ended it, and its answer was lost
    while True:
        for host in hosts.split(","):
            try:
                known = _close(host, session_id, password, max(0.1, until - time.monotonic()))
            except OSError as error:
                failed = error
                unclear = unclear or type(error) in (ConnectionError, ConnectionResetError)
                continue
            if not known and not unclear:
                raise NoSuchSession(f"no session {session_id:#x} at {host}, or not with this password")
            return
        if time.monotonic() > until:
            raise TimeoutError(f"no server at {hosts} answers: {failed}")
        time.sleep(0.05)


def _close(host, session_id, password, timeout):
    """Return whether the server knew the session. Raises OSError."""
    address, _, port = host.rpartition(":")
    connect = integer(0) + long(0) + integer(10_000) + long(session_id) + buffer(password) + boolean(False)
    close = integer(1) + integer(OPS["closeSession"])
    with socket.create_connection((address, int(port)), timeout=timeout) as link:
        # Both together: the victim, which is cut off now, would take its session back in between.
        link.sendall(buffer(connect) + buffer(close))
        answer = b""
        while chunk := link.recv(4096):  # up to the end, which comes after the close
            answer += chunk
    if not answer:
        raise ConnectionError(f"{host} has closed the connection")
    frame = Jute(Jute(answer).buffer() or b"")
    frame.int32(), frame.int32()  # the version and the timeout
    return frame.int64() == session_id


def password_of(session_id):
    """Derive the password that a real server gave to a session: java.util.Random, seeded with the id."""
    state = ((session_id ^ SECRET) ^ MULTIPLIER) & MASK
    password = b""
    for _ in range(4):
        state = (state * MULTIPLIER + INCREMENT) & MASK
        password += (state >> 16).to_bytes(4, "little")
    return password
