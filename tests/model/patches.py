"""Put the simulation in the place of the world, for what runs on its own thread: other sessions go on as before."""

import logging
import os
import threading
import uuid
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace

from django_zklock.core import clock
from django_zklock.core.locks.lingering import LingeringLock, LingeringWaiter
from django_zklock.core.protocol import registry, releases
from django_zklock.core.protocol.contender import Contender
from django_zklock.core.queue import nodes
from django_zklock.core.zk import session
from model.client import SimulatedClient

PREEMPTED = ("append", "remove", "grant_first", "ends_on_release", "new_grant")  # begun by several threads
AUDIT_INTERVAL = 2.0  # seconds; so that audits meet all else that goes on

_session = session  # its imports are replaced, too
_real_now = clock.now
_real_client = _session.Client
_real_payload = Contender._payload


class Stage:
    def __init__(self):
        self.world = None
        self.complaints = []
        self._thread = threading.get_ident()
        self._guids = 0

    def play(self, world):
        self.world = world
        self.complaints.clear()
        self._guids = 0

    def _here(self):
        return self.world if threading.get_ident() == self._thread else None

    def now(self):
        world = self._here()
        return _real_now() if world is None else world.now

    def payload(self, contender):
        """Return the same data at each run: with no time and no host in them. A deadlock takes the real ones."""
        world = self._here()
        return _real_payload(contender) if world is None or world.nested else f"{contender.guid} {contender.spec.limit}"

    def client(self, options, former):
        world = self._here()
        if world is None or world.current is None:
            return _real_client(options, former)
        return SimulatedClient(options, world.current)

    def preempting(self, call):
        def preempted(*args):
            world = self._here()
            process = None if world is None else world.current
            if process is None:
                return call(*args)
            process.preempt()
            result = call(*args)
            process.preempt()
            return result

        return preempted

    def uuid4(self):
        if self._here() is None:
            return uuid.uuid4()
        self._guids += 1
        return uuid.UUID(int=self._guids)


@contextmanager
def replaced(patches):
    with ExitStack() as stack:
        for owner, name, value in patches:
            stack.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, value)
        yield


class _Complaints(logging.Handler):
    def __init__(self, stage):
        super().__init__(logging.ERROR)
        self._stage = stage

    def emit(self, record):
        text = record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            text += f": {record.exc_info[1]!r}"
        self._stage.complaints.append(text)


@contextmanager
def stage():
    new_stage = Stage()
    pid = os.getpid()
    patches = [
        (clock, "now", new_stage.now),
        (os, "getpid", lambda: pid),  # asked at every step, and the system takes its time to say
        (session, "Client", new_stage.client),
        (nodes, "uuid", SimpleNamespace(uuid4=new_stage.uuid4)),
        (Contender, "_payload", lambda contender: new_stage.payload(contender)),  # noqa: PLW0108 - no bound method
        (registry, "AUDIT_INTERVAL", AUDIT_INTERVAL),
        *((LingeringLock, name, new_stage.preempting(getattr(LingeringLock, name))) for name in PREEMPTED),
        (LingeringWaiter, "grant_now", new_stage.preempting(LingeringWaiter.grant_now)),
    ]
    logger = logging.getLogger("django_zklock")
    handler = _Complaints(new_stage)
    level = logger.level
    under_way = set(releases._under_way)
    logger.addHandler(handler)
    logger.setLevel(logging.ERROR)
    try:
        with replaced([*patches, (logger, "propagate", False)]):
            yield new_stage
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        for release in set(releases._under_way) - under_way:
            releases.end(release)  # its reply would have come after the end of the play
