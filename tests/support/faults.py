"""Shared by tests of faults: the session of this process, calls in other threads, links that can be frozen."""

import contextlib
import functools
import socket
import threading
from queue import SimpleQueue
from typing import Generic, TypeVar
from unittest import mock

from django_zklock import zk_lock
from django_zklock.core import clock
from django_zklock.core.protocol import contender
from django_zklock.core.zk import client as client_module
from django_zklock.core.zk import heartbeat, process
from django_zklock.exceptions import LockLost
from support.chaos import session_killer
from support.proxy import MULTI, Proxy
from support.zoo import ROOM, eventually, settle

T = TypeVar("T")


def session():
    return process.current()


def client():
    client = session()._client
    assert client is not None
    return client


def has_watches():
    """Return whether the client of this process watches the data of any znode."""
    return any(client()._data_watchers.values())


def connected(timeout=10.0):
    current_session = session()
    current_session.wanted_until = clock.now() + timeout  # without that, it rests after many refused connects
    eventually(lambda: current_session.connected and current_session.session_id, timeout)
    return current_session


@contextlib.contextmanager
def proxied(zoo, session_timeout=4, **more):
    with Proxy(zoo.address) as proxy, zoo.configured(proxy.address, session_timeout, **more):
        try:
            yield proxy
        finally:
            proxy.heal()
        if process.peek() is not None:
            connected()  # so that the session can be closed, and leaves nothing to the next test


@contextlib.contextmanager
def warmed(zoo, key):
    """Use a proxy while the session rests, to count requests: no contender watches its own node, and beats are rare."""
    zoo.client.ensure_path(f"{zoo.base}/{key}")
    late_beat = mock.patch.object(heartbeat, "BEAT_SHARE", 0.3)
    no_watch = mock.patch.object(contender, "WATCH_SELF_AFTER", 60.0)
    patient = mock.patch.object(client_module, "STALL_SHARE", 0.28)  # no new connection after a pause of the machine
    with late_beat, no_watch, patient, proxied(zoo, 20, DEADLOCK_TIMEOUT=None) as proxy:
        connected()
        acquire_once(key)
        settle()
        yield proxy


@contextlib.contextmanager
def within(limit):
    began = clock.now()
    try:
        yield
    finally:
        assert (took := clock.now() - began) <= limit + ROOM, f"took {took:.2f} s, not {limit:g} s at most"


def lose(lock, cause, limit):
    """Wait under a lock that `cause(hold)` takes away; return the hold, and what its user is told in time."""
    holds = []
    try:
        with lock as hold:
            holds.append(hold)
            cause(hold)
            with within(limit):
                threading.Event().wait(limit + 5)
    except LockLost as error:
        return holds[0], str(error)
    raise AssertionError(f"the work was not stopped within {limit + 5:g} s; expected LockLost")


def reconnect(proxy):
    """Cut the connection, and wait for a new one. A test that asks for a break may come too late to see it."""
    before = proxy.connected
    proxy.cut_all()
    proxy.wait_for(lambda: proxy.connected > before)
    connected()


def cut(proxy):
    """Cut the connection, and wait until a quorum has vouched for the session on a new one; it must hold a lock."""
    before = proxy.connected
    proxy.cut_all()
    proxy.wait_for(
        lambda: any(frame.opcode == MULTI and not frame.request and frame.connection > before for frame in proxy.frames)
    )
    eventually(lambda: not session().suspect)


def due(seconds):
    """Wait until the protocol's thread has done all that is due within so many seconds, and users' code has run."""
    done = threading.Event()
    current = session()
    current.post(lambda: current.loop.call_later(seconds, lambda: current.dispatch(done.set)))
    assert done.wait(30)


@contextlib.contextmanager
def black_hole(host="127.0.0.1", port=0):
    """Have an address that answers no connect: the queue of its listener is full, and nobody accepts."""
    with socket.create_server((host, port), backlog=0) as listener, contextlib.ExitStack() as stack:
        for _ in range(8):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        yield f"{host}:{listener.getsockname()[1]}"


def caught_up():
    """
    Wait until this process has heard of all that has happened in ZooKeeper, and has done what follows from it.

    A server sends an event before the replies to later requests of the session. What the event makes the process ask
    for is answered before the second lock of another key.
    """
    for _ in range(2):
        acquire_once("caught-up", timeout=30, reentrant=False)
    due(0)


def expire(zoo):
    """End the session of this process, as its time would: a second client takes it over and closes it."""
    victim = client()  # kazoo's own client_id is None while the connection is cut
    session_killer.expire(zoo.all_hosts, victim._session_id, victim._session_passwd)


def die():
    process.reset(6)


class BackgroundCall(threading.Thread, Generic[T]):
    def __init__(self, call):
        super().__init__(daemon=True)
        self._call = call
        self._value = []
        self._error = None
        self.took = 0.0  # seconds
        self.start()

    def run(self):
        began = clock.now()
        try:
            self._value.append(self._call())
        except BaseException as error:
            self._error = error
        finally:
            self.took = clock.now() - began

    def result(self, timeout=30.0):
        self.join(timeout)
        assert not self.is_alive(), f"still at it after {timeout:g} s"
        if self._error is not None:
            raise self._error
        return self._value[0]


class CallOnDemand(BackgroundCall[T]):
    """A call that begins at `begin(...)`: the thread is there before the work that the call may abort."""

    def __init__(self, call):
        self._arguments = SimpleQueue()
        super().__init__(lambda: call(*self._arguments.get(timeout=30)))

    def begin(self, *arguments):
        self._arguments.put(arguments)


def acquire_once(lock, **options):
    """Acquire a lock, or that of a key, check it and release it; return the hold."""
    with zk_lock(lock, **options) if isinstance(lock, str) else lock as hold:
        hold.check()
    return hold


def results(calls, timeout=30.0):
    """Return what calls in other threads have returned, or raise what the first one has raised."""
    return [call.result(timeout) for call in calls]


def queue_up(zoo, key, count, **options):
    """Have threads queue in order; return them, and the list to which each adds its number when it has the lock."""

    def append(number):
        with zk_lock(key, **{"timeout": 20, **options}):
            order.append(number)

    order = []
    threads = []
    before = len(zoo.children(key))
    for number in range(count):
        threads.append(BackgroundCall(functools.partial(append, number)))
        zoo.wait_contenders(key, before + number + 1)
    return threads, order


@contextlib.contextmanager
def acquired_by_many(key, many, inside, *, forgiven=(), **options):
    """Have `many` threads want a lock, of which `inside` get it; they raise at the end what is not `forgiven`."""

    def hold_until_done():
        with zk_lock(key, **{"timeout": 30, **options}) as hold:
            holds.append(hold)
            done.wait(30)

    holds = []
    done = threading.Event()
    threads = [BackgroundCall(hold_until_done) for _ in range(many)]
    try:
        eventually(lambda: len(holds) == inside)
        yield holds
    finally:
        done.set()
        for thread in threads:
            with contextlib.suppress(*forgiven):
                thread.result()
