"""The locks under test: ours, and kazoo's own, which must fail. What a process asks of a lock is the same for both."""

import contextlib
import os
import signal
import threading
import time

import django
from kazoo.client import KazooClient, KazooState
from kazoo.exceptions import KazooException, LockTimeout

from django_zklock import zk_lock
from django_zklock.core.protocol.contender import Contender
from django_zklock.core.protocol.registry import Registry
from django_zklock.core.zk import process
from django_zklock.exceptions import LockLost, LockNotHeld, ZkLockError
from support.chaos import faultpoints


class Refused(Exception):
    """The lock was not acquired; the message is the kind of the error."""


class Lost(Exception): ...


@contextlib.contextmanager
def _told():
    try:
        yield
    except (LockLost, LockNotHeld) as error:
        raise Lost(str(error)) from error
    except ZkLockError as error:
        raise Refused(type(error).__name__) from error


class ZkLockHeld:
    def __init__(self, lock, hold):
        self._lock = lock
        self._hold = hold
        self.token = hold.token

    def until(self):
        before = time.monotonic()  # first: a pause in between makes the claim too modest, never too bold
        return before + self._hold.lease_remaining

    def check(self):
        with _told():
            self._hold.check()

    def release(self):
        with _told():
            self._lock.release()


class ZkLockSubject:
    def __init__(self, url):
        os.environ["DJANGO_SETTINGS_MODULE"] = "settings"
        os.environ["ZKLOCK_URL"] = url
        django.setup()
        self._strikes = []  # the moment, the fault and its seconds; the last one is next
        faultpoints.install(self._reach)

    def connect(self):
        session = process.current()
        deadline = time.monotonic() + 20
        while not (session.connected and session.session_id) and time.monotonic() < deadline:
            time.sleep(0.01)

    def acquire(self, key, timeout, options):
        """Acquire, waiting for `timeout` seconds at most (None: for ever). Raises `Refused`."""
        with _told():
            lock = zk_lock(key, timeout=timeout, **options)
            hold = lock.acquire(timeout=-1 if timeout is None else timeout) if timeout != 0 else lock.acquire(False)
        if hold is None:
            raise Refused("None")
        return ZkLockHeld(lock, hold)

    @contextlib.contextmanager
    def block(self, key, timeout, options):
        """Work under the lock. Raises `Refused` or `Lost`."""
        with _told():
            lock = zk_lock(key, timeout=timeout, **options)
            with lock as hold:
                yield ZkLockHeld(lock, hold)

    def session(self):
        return process.current().session_id or 0

    def connected(self):
        return process.current().connected

    def chatter(self):
        session = process.current()
        session.post(lambda: session.gateway.children(session.options.base, lambda answer: None))

    def known(self):
        """Return what identifies the znodes that this process still answers for: guids or names."""
        session = process.current()
        return [] if session.session_id is None else sorted(session.attached(Registry).guids)

    def gauge(self):
        session = process.current()
        registry = session.attached(Registry)
        client = session._client
        watchers = (client._data_watchers, client._child_watchers) if client is not None else ()
        return {
            # The first record of the log starts the thread that handles them all.
            "threads": sum(thread.name != "zklock-log" for thread in threading.enumerate()),
            "fds": len(os.listdir("/proc/self/fd")),
            "watches": sum(len(watchers_of_path) for table in watchers for watchers_of_path in table.values()),
            "listeners": len(client.state_listeners) if client is not None else 0,
            "members": sum(isinstance(observer, Contender) for observer in session.observers),
            "guids": len(registry.guids),
            "departures": len(registry.deleting),
            "kept": len(registry.heartbeat._nodes),
            "unanswered": session.requests.unanswered,
        }

    def strike(self, point, action, seconds=0.0):
        self._strikes.append((point, action, seconds))

    def _reach(self, point):
        if self._strikes and self._strikes[-1][0] == point:
            _, action, seconds = self._strikes.pop()
            act(action, seconds)

    def struck(self):
        return not self._strikes

    def close(self):
        process.reset(5)


def act(action, seconds):
    if action == "raise":
        raise RuntimeError("struck by the test")
    if action == "sleep":
        time.sleep(seconds)
    elif action == "fork":
        _fork(seconds)
    else:
        os.kill(os.getpid(), {"kill": signal.SIGKILL, "pause": signal.SIGSTOP}[action])


def _fork(seconds):
    """Leave a child behind that does nothing for so long, as a program's that was started at a bad moment."""
    child = os.fork()
    if child == 0:
        time.sleep(seconds)
        os._exit(0)
    threading.Thread(target=os.waitpid, args=(child, 0), daemon=True).start()


class KazooHeld:
    """A lock that was acquired; suspect from the first break of the connection on."""

    def __init__(self, subject, lock, token):
        self._subject = subject
        self._lock = lock
        self._breaks = subject.breaks
        self.token = token

    def until(self):
        """Return None: it has no lease."""

    def check(self):
        if not self._lock.is_acquired or not self._subject.client.connected or self._subject.breaks != self._breaks:
            raise Lost("the connection was suspended or lost")

    def release(self):
        suspect = self._subject.breaks != self._breaks  # before: a break under the delete takes nothing back
        self._lock.release()
        if suspect:
            raise Lost("the connection was suspended or lost")


class KazooSubject:
    """kazoo's `Lock`, as its documentation and good practice say: a new one each time, the client's state minded."""

    def __init__(self, hosts, base, session_timeout):
        self.client = KazooClient(hosts=hosts, timeout=session_timeout)
        self.breaks = 0
        self._base = base
        self._nodes = {}

    def _listen(self, state):
        if state != KazooState.CONNECTED:
            self.breaks += 1

    def connect(self):
        self.client.start(timeout=20)
        self.client.add_listener(self._listen)

    def acquire(self, key, timeout, options):
        lock = self.client.Lock(f"{self._base}/{key}", "chaos")
        try:
            acquired = lock.acquire(blocking=timeout != 0, timeout=timeout or None)
        except LockTimeout as error:
            raise Refused("LockTimeout") from error
        except KazooException as error:
            raise Refused(type(error).__name__) from error
        if not acquired:
            raise Refused("False")
        self._nodes[lock] = lock.node
        stat = self.client.exists(f"{self._base}/{key}/{lock.node}")
        return KazooHeld(self, lock, stat.czxid if stat is not None else 0)

    def session(self):
        return int(self.client.client_id[0])

    def chatter(self):
        self.client.exists_async(self._base)

    def known(self):
        return [node for lock, node in self._nodes.items() if lock.is_acquired]

    def close(self):
        self.client.stop()
        self.client.close()
