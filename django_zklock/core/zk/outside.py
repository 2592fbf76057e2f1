"""Ask the system for what may come late or never: the addresses of a name, and files on another machine."""

from __future__ import annotations

import functools
import ipaddress
import socket
import ssl
import threading
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from django_zklock.core import clock, fork
from django_zklock.core.zk.loop import quiet_thread
from django_zklock.core.zk.options import TlsFileAbsent, TlsOptions
from django_zklock.core.zk.outage import Address

NO_HOST = "no such host"
UNRESOLVED = "its name is not resolved; the resolver (DNS) does not answer"

_UNKNOWN = (socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME))  # the resolver has answered

FRESH = 1.0  # seconds for which an answer is as good as a new one; a slow one may come too late for its caller

_T = TypeVar("_T")


class Outside(Generic[_T]):
    """
    The newest result of a call that may hang.

    The call runs on a thread of its own, one at a time, so a resolver that hangs holds one thread at most.
    """

    def __init__(self, call: Callable[[], _T]) -> None:
        self._call = call
        self._result: _T | Exception = TimeoutError("timed out")  # of the newest call; until then, this error
        self._ended = threading.Event()
        self._ended.set()
        self.begun_at = float("-inf")  # on clock.now(), of the newest call

    def begin(self) -> None:
        """Make the call, unless it is under way or was made a moment ago. For any thread."""
        if not self._ended.is_set() or clock.now() < self.begun_at + FRESH:
            return
        self._ended.clear()
        self.begun_at = clock.now()
        try:
            quiet_thread("zklock-outside", self._run).start()
        except Exception as error:  # noqa: BLE001 - the process ends, or has no room for another thread
            if isinstance(self._result, Exception):
                self._result = OSError(f"nobody can ask the system: {error}")
            self._ended.set()

    def get(self, within: float) -> _T:
        """
        Return the newest value, or raise the error of the newest call.

        A call under way is waited for until it has had `within` seconds. Raises `TimeoutError` if none has ended yet.
        """
        self._ended.wait(max(0.0, self.begun_at + within - clock.now()))
        if isinstance(self._result, Exception):
            raise self._result.with_traceback(None)
        return self._result

    def _run(self) -> None:
        try:
            self._result = self._call()
        except Exception as error:  # noqa: BLE001 - it is raised where the value is needed
            self._result = error
        finally:
            self._ended.set()


def resolve(hosts: Iterable[Address], within: float) -> dict[Address, tuple[Address, ...] | OSError]:
    """
    Return the addresses of each host, or why there are none; wait for all names together `within` seconds at most.

    The resolver goes on, and a later call gets its answer.
    """
    calls = {host: _addresses(host) for host in hosts if not _is_address(host[0])}
    for call in calls.values():
        call.begin()
    resolved: dict[Address, tuple[Address, ...] | OSError] = {}
    for host in hosts:
        try:
            resolved[host] = calls[host].get(within) if host in calls else (host,)
        except TimeoutError:
            resolved[host] = OSError(UNRESOLVED)
        except OSError as error:
            resolved[host] = error
    return resolved


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


@functools.cache
def _addresses(host: Address) -> Outside[tuple[Address, ...]]:
    """Return the look-up of a host, of which there is one in this process. Its error is an `OSError`."""
    known: list[Address] = []  # while the resolver is out of order, they stay in use

    def look_up() -> tuple[Address, ...]:
        try:
            entries = socket.getaddrinfo(*host, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
            known[:] = dict.fromkeys((str(entry[4][0]), int(entry[4][1])) for entry in entries)
        except (OSError, UnicodeError) as error:
            if isinstance(error, UnicodeError) or error.errno in _UNKNOWN:
                known.clear()
                raise OSError(NO_HOST) from error
            if not known:
                raise
        return tuple(known)

    return Outside(look_up)


@functools.cache
def _context(tls: TlsOptions) -> Outside[ssl.SSLContext]:
    return Outside(tls.context)


def context(tls: TlsOptions, within: float) -> ssl.SSLContext:
    """
    Return a context for TLS, of the files as they are now; wait for them `within` seconds at most.

    If that is not enough, it is the context of an earlier call. Raises `TlsProblem`.
    """
    call = _context(tls)
    call.begin()
    try:
        return call.get(within)
    except TimeoutError:
        files = ", ".join(dict.fromkeys(filter(None, (tls.ca, tls.cert, tls.key)))) or "the system's certificates"
        raise TlsFileAbsent(f'a file of ZKLOCK["TLS"] cannot be read, reading hangs: {files}') from None


for _cached in (_addresses, _context):
    fork.in_child(_cached.cache_clear)  # a child has none of the threads
