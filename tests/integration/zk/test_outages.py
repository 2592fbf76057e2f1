"""No call outlives its deadline by more than a second, whatever ZooKeeper does, and nothing is left behind."""

import contextlib
import socket
import threading
import time
from collections.abc import Callable

import pytest
from support.ensemble import free_ports
from support.faults import BackgroundCall, acquire_once, black_hole, client, connected, proxied, session, within
from support.proxy import GET_DATA, Proxy
from support.zoo import ROOM, eventually

from django_zklock import zk_lock
from django_zklock.exceptions import LockTimeout, ZooKeeperUnavailable

pytestmark = pytest.mark.timed

LATER = 1.0  # seconds that a call may outlive its deadline
CONNECT_TIMEOUT = 3  # seconds, as the namespace's URL says


@pytest.fixture
def proxy(zoo):
    with proxied(zoo) as proxy:
        yield proxy


@contextlib.contextmanager
def refusing(proxy):
    proxy.go_away()
    yield
    proxy.heal()


@contextlib.contextmanager
def hanging(proxy):
    proxy.hang = True
    yield
    proxy.heal()


Outage = Callable[[Proxy], contextlib.AbstractContextManager[None]]
outages = pytest.mark.parametrize("outage", [refusing, hanging])


def acquire_in_vain(timeout):
    with zk_lock("a", timeout=timeout):
        raise AssertionError("the lock was granted during the outage; expected an error")


CALLS = {
    "acquire(timeout=0.5)": (lambda: zk_lock("a").acquire(timeout=0.5), 0.5 + LATER),
    "acquire(blocking=False)": (lambda: zk_lock("a").acquire(blocking=False), LATER),
    "with timeout=1": (lambda: acquire_in_vain(1), 1 + LATER),
    "with timeout=0": (lambda: acquire_in_vain(0), LATER),
    "acquire()": (lambda: zk_lock("a").acquire(timeout=30), CONNECT_TIMEOUT + LATER),
    "locked()": (lambda: zk_lock("a").locked(), CONNECT_TIMEOUT + LATER),
}
"""The calls of users, and the seconds that each may take."""


def make_all_calls(names=None):
    calls = {name: call for name, call in CALLS.items() if names is None or name in names}
    running = {name: BackgroundCall(call) for name, (call, _) in calls.items()}
    for name, (_, limit) in calls.items():
        with pytest.raises(ZooKeeperUnavailable):
            running[name].result()
        assert running[name].took <= limit + ROOM, f"{name} took {running[name].took:.2f} s"


@outages
def test_a_connected_process_keeps_its_deadlines(zoo, proxy, outage):
    assert zoo.client.connected
    held = zk_lock("held", abort_on="never")
    held.acquire()
    with outage(proxy):
        with within(LATER):
            held.release()
        make_all_calls(("acquire(timeout=0.5)", "acquire(blocking=False)", "with timeout=1", "with timeout=0"))
    eventually(lambda: zoo.children("held") == [], 10, "the node of a release during an outage stays")


@outages
def test_a_waiter_keeps_its_deadline_in_an_outage(zoo, proxy, outage):
    connected()
    with zoo.hold_elsewhere("a"):
        waiter = BackgroundCall(lambda: acquire_in_vain(2))
        proxy.wait_for(lambda: proxy.counts[GET_DATA])
        with outage(proxy):
            with pytest.raises(LockTimeout):
                waiter.result()
            assert waiter.took <= 2 + LATER + ROOM
        eventually(lambda: len(zoo.children("a")) == 1, 10, "the one who gave up is still in the queue")


@pytest.mark.parametrize("host", ["no-such-host.invalid:2181", "127.0.0.1:{closed}", "{blackhole}", "{hanging}"])
def test_a_process_that_never_reached_zookeeper_keeps_the_deadlines(zoo, proxy, host):
    proxy.hang = True
    with contextlib.ExitStack() as stack:
        host = host.format(closed=free_ports(1)[0], blackhole=stack.enter_context(black_hole()), hanging=proxy.address)
        stack.enter_context(zoo.configured(host))
        make_all_calls()


def test_an_outage_that_ends_in_time_is_no_error(zoo, proxy):
    proxy.refuse = True
    waiter = BackgroundCall(lambda: acquire_once("a", timeout=10))
    eventually(lambda: session().loop._timers)  # it waits for a session
    proxy.heal()
    waiter.result()


def test_wake_ups_do_not_move_the_deadline(zoo, proxy):
    connected()
    with contextlib.ExitStack() as stack:
        ahead = [stack.enter_context(zoo.hold_elsewhere("a")) for _ in range(6)]
        timers = [
            threading.Timer(0.35 * index, zoo.client.delete, [path]) for index, path in enumerate(ahead[:0:-1], start=1)
        ]
        for timer in timers:
            timer.start()
        began = time.monotonic()
        with within(1.5 + LATER):
            assert zk_lock("a").acquire(timeout=1.5) is None
        assert time.monotonic() - began >= 1.5
        for timer in timers:
            timer.join()


@pytest.mark.chaos
def test_a_dead_host_does_not_end_the_lease(zoo):
    with (
        socket.create_server(("127.0.0.1", 0), backlog=128) as silent,
        zoo.configured(f"127.0.0.1:{silent.getsockname()[1]},{zoo.hosts}"),
        zk_lock("a", abort_on="lost") as hold,
    ):
        for _ in range(3):
            lease = session().lease.until
            client().drop_connection()
            eventually(lambda lease=lease: session().lease.until > lease and not session().suspect)
        hold.check()
