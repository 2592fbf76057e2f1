"""The namespace of a test: a plain client, the queues in it, and processes that use its locks."""

import contextlib
import functools
import logging
import os
import subprocess
import threading
import time
import uuid
from pathlib import Path
from queue import SimpleQueue

from django.test import override_settings
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from django_zklock.core import clock
from django_zklock.core.execution import abort
from django_zklock.core.execution.waiters import ThreadWaiter
from django_zklock.core.locks.held import held_locks
from django_zklock.core.queue import nodes
from django_zklock.core.queue.escaping import SEQUENCE_TAIL
from django_zklock.testing.tester import wait_released
from support import forked

TESTS = Path(__file__).parent.parent
PYTHONPATH = f"{TESTS}{os.pathsep}{TESTS.parent}"
SESSION = 20  # seconds, as long as the servers allow: a busy machine must cost no lock of a test about other things


ROOM = float(os.environ.get("TEST_ROOM", "10"))
"""Seconds that a busy machine may be late. `make chaos` judges time, and allows half a second."""


def eventually(condition, timeout=10.0, message=""):
    """Return the first true value of `condition()`, or fail with `message` after `timeout` and some room."""
    began = clock.now()
    while True:
        value = condition()
        if value:
            return value
        waited = clock.now() - began
        if waited > timeout + ROOM:
            raise AssertionError(str(message) if message else f"not within {timeout} s: {condition}")
        # Each look may be a request. A long wait looks less often, and leaves the processor to what is waited for.
        time.sleep(min(0.05, max(0.005, waited / 10)))


def guid_of(path):
    child = nodes.parse(path.rpartition("/")[2])
    assert child is not None
    return child.guid


def next_line(process):
    assert process.stdout is not None
    return process.stdout.readline().rstrip("\n")


settle = wait_released  # the tests wait for the releases of their process before they look by another client


class _ThreadedClient(KazooClient):
    """
    A plain client whose calls are made in a thread of its own, also when the test's own thread asks for them.

    That thread may be at work under the lock whose node it deletes. The abort strikes it while it waits for a bare lock
    then. Inside kazoo it would be swallowed, and in `threading.Condition` it would end in a RuntimeError.
    """

    def __init__(self, **options):
        super().__init__(**options)
        for name in ("create", "delete", "get", "set", "exists", "get_children"):
            setattr(self, name, functools.partial(self._in_thread, getattr(self, name)))
        self._calls = SimpleQueue()
        self._maker = threading.Thread(target=self._make_calls, name="zoo-client", daemon=True)
        self._maker.start()

    def _make_calls(self):
        while call := self._calls.get():
            call()

    def _in_thread(self, call, *arguments, **options):
        if threading.current_thread() is self._maker:
            return call(*arguments, **options)
        reported = ThreadWaiter()

        def make():
            try:
                reported.set((call(*arguments, **options), None))
            except Exception as error:
                reported.set((None, error))

        self._calls.put(make)
        answer = reported.wait(30)
        assert answer is not None, "ZooKeeper did not answer within 30 s"
        if answer[1] is not None:
            raise answer[1]
        return answer[0]

    def close(self):
        super().close()
        self._calls.put(None)


class _SharedClient(_ThreadedClient):
    def add_auth(self, scheme, credential):
        raise AssertionError("later tests would have these credentials, too: call `use_own_client` before")


@functools.cache
def _shared_client(hosts):
    """Return the client that the tests on these servers share; to begin a session for each costs more than the rest."""
    quiet = logging.getLogger("zoo-client")
    quiet.setLevel(logging.CRITICAL)  # nobody closes it before the servers end
    client = _SharedClient(hosts=hosts, timeout=10, logger=quiet)
    client.start(timeout=30)
    return client


class Zoo:
    def __init__(self, hosts, ensemble):
        self.ensemble = ensemble
        self.hosts = hosts
        self.chroot = f"/t{uuid.uuid4().hex[:8]}"
        self.base = f"{self.chroot}/zklock"
        self._client = None
        self._shares_client = False

    @property
    def address(self):
        return self.all_hosts.partition(",")[0]

    @property
    def all_hosts(self):
        """All servers, whichever of them the locks are pointed to."""
        return self.ensemble.hosts

    def url(self, hosts=None, session_timeout=SESSION, connect_timeout=3):
        query = f"session_timeout={session_timeout}&connect_timeout={connect_timeout}"
        return f"zk://{hosts or self.hosts}{self.chroot}?{query}"

    def settings(self, hosts=None, session_timeout=SESSION, **more):
        return {"URL": self.url(hosts, session_timeout), **more}

    @contextlib.contextmanager
    def configured(self, hosts=None, session_timeout=SESSION, **more):
        with override_settings(ZKLOCK=self.settings(hosts, session_timeout, **more)):
            yield

    def environment(self, hosts=None, session_timeout=SESSION):
        return {
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "settings",
            "ZKLOCK_URL": self.url(hosts, session_timeout),
            "PYTHONPATH": PYTHONPATH,
        }

    @property
    def client(self):
        """A plain client, to look and to meddle; it takes part in no lock unless told."""
        if self._shares_client:
            return _shared_client(self.all_hosts)
        if self._client is None:
            self._client = _ThreadedClient(hosts=self.all_hosts, timeout=10)
            self._client.start(timeout=30)
        return self._client

    def use_own_client(self):
        self._shares_client = False
        return self.client

    def names(self, path):
        """The children of a node. None, if it does not exist: the server removes an empty container at any moment."""
        settle()
        try:
            return list(self.client.get_children(path))
        except NoNodeError:
            return []

    def children(self, key):
        """The contenders of a key, first come first."""
        names = self.names(f"{self.base}/{key}")
        return sorted((name for name in names if SEQUENCE_TAIL.search(name)), key=lambda name: name[-10:])

    def _below(self, path):
        """Yield the names of all nodes below one, and their paths, but not those of records."""
        for name in self.names(path):
            yield name, f"{path}/{name}"
            if not (name.startswith("!") or SEQUENCE_TAIL.search(name)):
                yield from self._below(f"{path}/{name}")

    def contenders(self, path=None):
        below = self._below(path or self.base)
        return [path for name, path in below if SEQUENCE_TAIL.search(name) and not name.startswith("!")]

    def payloads(self, key):
        payloads = []
        for name in self.children(key):
            with contextlib.suppress(NoNodeError):  # gone since
                payloads.append(nodes.Payload.decode(self.client.get(f"{self.base}/{key}/{name}")[0]))
        return payloads

    def wait_contenders(self, key, count, timeout=10.0):
        eventually(lambda: len(self.children(key)) == count, timeout, f"{key}: not {count} contenders")
        return self.children(key)

    def delete(self, key):
        self.client.delete(f"{self.base}/{key}/{self.children(key)[0]}")

    def assert_empty(self, timeout=2.0):
        deadline = clock.now() + timeout + (ROOM if timeout else 0)
        while (left := self.contenders()) and clock.now() < deadline:
            time.sleep(0.01)
        assert left == [], "contenders left behind: " + "; ".join(
            f"{path} {self.client.get(path)[0]!r}" for path in left if self.client.exists(path)
        )

    @contextlib.contextmanager
    def hold_elsewhere(self, key, kind=nodes.Kind.LOCK, *, guid="", compat=None):
        """Have a foreign client in the queue of a lock for the length of a block. Yield the path of its node."""
        name = nodes.prefix(guid or str(uuid.uuid4()), kind, compat)
        path = self.client.create(f"{self.base}/{key}/{name}", b"foreign", ephemeral=True, sequence=True, makepath=True)
        try:
            yield path
        finally:
            with contextlib.suppress(NoNodeError):
                self.client.delete(path)

    def spawn(self, script, *arguments, first="", hosts=None, host="", **env):
        """Run code in a process that is set up for this namespace; `first` comes before Django. The caller ends it."""
        # A shell starts what it puts in the background with Ctrl-C ignored, and children inherit that.
        interruptible = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
        prelude = (
            f"{interruptible}\n{first}\nimport django; django.setup()\nfrom django_zklock import zk_lock, zk_locked\n"
        )
        start = forked.start_fresh if first else forked.start  # it may change what others have imported
        return start(
            ["-u", "-c", prelude + script, *arguments],
            host=host,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=TESTS,
            env={**self.environment(hosts, session_timeout=10), **env},
        )

    @contextlib.contextmanager
    def running(self, script, *arguments, **how):
        process = self.spawn(script, *arguments, **how)
        try:
            yield process
        finally:
            process.kill()
            process.communicate()

    def output(self, script, *, first="", timeout=50, **env):
        with self.running(script, first=first, **env) as process:
            printed, errors = process.communicate(timeout=timeout)
        assert process.returncode == 0, errors
        assert "Traceback" not in errors, errors
        return printed.splitlines()

    def close(self):
        client = self.client if self._shares_client else self._client
        if client is not None:
            with contextlib.suppress(Exception):
                if client.connected:
                    client.delete(self.chroot, recursive=True)
        if self._client is not None:
            self._client.stop()
            self._client.close()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()


@contextlib.contextmanager
def namespace(server):
    """Point the locks of this process to a namespace of their own on a server, and see that it is left empty."""
    zoo = Zoo(server.hosts, server)
    zoo._shares_client = True
    try:
        with zoo.configured():
            yield zoo
            zoo.assert_empty()
            assert not held_locks._kept, "acquired and never released"
            assert not held_locks._guards, "a block that never ended"
            assert not held_locks.all(), "held by what nobody refers to any more, or in a session that has gone"
            assert not abort._thread_aborts, "work that could still be stopped, and has ended"
    finally:
        # Or the next test's owner, or its count, would be wrong, or it would find what this one has left.
        held_locks._kept.clear()
        held_locks._guards.clear()
        abort._thread_aborts.clear()
        zoo.close()
