"""Names of servers: one that is dead, late or has dead addresses costs no more than one server."""

import socket
import threading
import time
from collections.abc import Callable

import pytest
from django.test import override_settings
from support.faults import black_hole, cut, within
from support.proxy import Proxy
from support.zoo import ROOM

from django_zklock import inspection, zk_lock
from django_zklock.core.log import on_protocol_thread
from django_zklock.core.zk import connection, outside, process

CONNECT_TIMEOUT = 5.0
DEAD = "127.0.0.9"
Names = dict[str, Callable[[], list[str]]]


@pytest.fixture
def names(monkeypatch):
    """Return what the resolver does, by name. It is never asked on one of our threads."""
    names = {}
    real, asked_here, over = socket.getaddrinfo, [], threading.Event()

    def hang():
        over.wait(60)
        raise socket.gaierror(socket.EAI_AGAIN, "no answer")

    def getaddrinfo(host, port, *args, **how):
        if host not in names:
            return list(real(host, port, *args, **how))
        if on_protocol_thread():
            asked_here.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in names[host]()]

    names["silent.test"] = hang
    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    monkeypatch.setattr(connection, "LOOKUP_FIRST", 60.0)  # nobody waits for a name if another one has its addresses
    outside._addresses.cache_clear()
    yield names
    process.reset()
    over.set()
    assert not asked_here


def fail(error):
    def answer():
        raise error

    return answer


BAD = {
    "silent": None,  # as in the fixture
    "unknown": fail(socket.gaierror(socket.EAI_NONAME, "unknown")),
    "out of order": fail(socket.gaierror(socket.EAI_AGAIN, "later")),
    "no text": fail(UnicodeError("label too long")),
    "dead": lambda: [DEAD],
    "dead, and the server's": lambda: [DEAD, "127.0.0.1"],
    "the server's, and dead": lambda: ["127.0.0.1", DEAD],
}


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("first", [True, pytest.param(False, marks=pytest.mark.chaos)], ids=["first", "last"])
def test_one_bad_name_costs_one_server(server, names, bad, first):
    answer = BAD[bad]
    name = "silent.test" if answer is None else "bad.test"
    names[name] = answer or names["silent.test"]
    port = int(server.hosts.rpartition(":")[2])
    hosts = [f"{name}:{port}", server.hosts][:: 1 if first else -1]
    zklock = {"URL": f"zk://{','.join(hosts)}/names", "CONNECT_TIMEOUT": CONNECT_TIMEOUT}
    with black_hole(DEAD, port), override_settings(ZKLOCK=zklock):
        for _ in range(2):  # the order of the tries is drawn
            process.reset()
            with within(CONNECT_TIMEOUT), zk_lock("a", timeout=CONNECT_TIMEOUT + ROOM):
                pass
        with within(1):
            reports = inspection.ensemble(reply_timeout=3, max_age=0).servers
    assert [report.serves for report in reports].count(True) == 1, "two names of one server are one"
    assert all(report.serves or report.problem.startswith("does not answer: ") for report in reports)


def test_a_slow_resolver_costs_its_time_once(server, names, monkeypatch):
    monkeypatch.setattr("django_zklock.core.zk.client.FIRST_RETRY", 60.0)
    asked = []

    def slow():
        asked.append(time.monotonic())
        time.sleep(0.4)
        return ["127.0.0.1"]

    names["slow.test"] = slow
    port = server.hosts.rpartition(":")[2]
    with override_settings(ZKLOCK={"URL": f"zk://slow.test:{port}/names"}), zk_lock("a", timeout=0):
        assert len(asked) == 1


def test_a_hold_outlasts_a_cut_while_the_resolver_hangs(server, names):
    """The addresses of the last look-up are used until there is an answer."""
    with Proxy(server.hosts) as proxy:
        names["zk.test"] = lambda: ["127.0.0.1"]
        url = f"zk://zk.test:{proxy.port}/names"
        with override_settings(ZKLOCK={"URL": url, "SESSION_TIMEOUT": 10}), zk_lock("a", abort_on="lost") as hold:
            names["zk.test"] = names["silent.test"]
            for _ in range(3):
                cut(proxy)
            hold.check()
