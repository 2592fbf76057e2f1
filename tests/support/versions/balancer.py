"""Ask one of several sites, as a balancer does: the next one, if one is not there."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import time
from collections.abc import Callable, Mapping, Sequence

TIMEOUT = 60.0  # seconds in which one of the sites must accept, and for each answer
PAUSE = 0.02  # seconds between two tries
STALE = 412  # the status of a request whose token is out of date


class Stale(Exception):
    """The site says that a token is out of date."""


Headers = Callable[[], Mapping[str, str]]


def get(sites: Sequence[str], path: str, headers: Headers = dict) -> bytes:
    """Return an answer. Raises Stale, or AssertionError for another status than 200 and if no site is there."""
    deadline = time.monotonic() + TIMEOUT
    for site in itertools.cycle(sites):
        # A site that ends refuses a connection, or closes it without a look at the request.
        with contextlib.suppress(ConnectionRefusedError, ConnectionResetError, http.client.RemoteDisconnected):
            return _get(site, path, headers())
        assert time.monotonic() < deadline, "no site accepts the request"
        time.sleep(PAUSE)
    raise AssertionError


def _get(site: str, path: str, headers: Mapping[str, str]) -> bytes:
    connection = http.client.HTTPConnection(site, timeout=TIMEOUT)
    with contextlib.closing(connection):
        connection.request("GET", path, headers={**headers, "Connection": "close"})
        answer = connection.getresponse()
        body = answer.read()
    if answer.status == STALE:
        raise Stale(body)
    assert answer.status == 200, (path, answer.status, body[-500:])
    return body
