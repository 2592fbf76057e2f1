"""Inject a random fault into a pool of processes or its servers every few seconds, and undo it after a while."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from kazoo.exceptions import KazooException

from support.chaos.faultpoints import FAULTPOINTS
from support.chaos.servers import repair
from support.chaos.session_killer import NoSuchSession, expire
from support.chaos.worker_pool import LockWorker, WorkerPool
from support.ensemble import Ensemble, ServerFailed
from support.proxy import CREATE2, DELETE, GET_CHILDREN, GET_DATA, MULTI, Proxy

LONGEST = 8.0  # seconds that a fault lasts: longer than a session, so that some expire while their processes still work


@dataclass
class Nemesis:
    """The faults of a soak. The `mortal` are killed and replaced; the others live on, to show what leaks."""

    pool: WorkerPool
    ensemble: Ensemble
    proxies: list[Proxy]
    mortal: list[LockWorker]
    start: Callable[[], LockWorker]
    chance: random.Random

    def __post_init__(self):
        self.done = Counter()
        self._deck = []
        self._faults = {
            "kill a process": self._kill,
            "pause a process": self._pause,
            "strike by a signal": self._alarm,
            "cut connections": self._cut,
            "lose one request or answer": self._lose,
            "half-open connections": self._half_open,
            "refuse connections": self._refuse,
            "slow network": self._delay,
            "expire a session": self._expire,
            "delete a holder's node": lambda: self._delete(0),
            "delete a waiter's node": lambda: self._delete(-1),
            "kill a server": self._kill_server,
            "pause a server": self._pause_server,
            "stall at a faultpoint": lambda: self._strike("sleep"),
            "fork at a faultpoint": lambda: self._strike("fork"),
        }

    def run(self, seconds):
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self._once(min(deadline - time.monotonic(), self.chance.uniform(0.3, LONGEST)))
            time.sleep(self.chance.uniform(0.2, 2.0))
        self.heal()

    def heal(self):
        for proxy in self.proxies:
            proxy.heal()
        repair(self.ensemble)

    def _once(self, seconds):
        names = {self._draw() for _ in range(2 if self.chance.random() < 0.2 else 1)}
        with contextlib.ExitStack() as stack:
            for name in sorted(names):
                try:
                    stack.enter_context(contextlib.contextmanager(self._faults[name])())
                    self.done[name] += 1
                except (KazooException, NoSuchSession, ServerFailed, LookupError, TimeoutError) as error:
                    self.pool.note("nothing", why=f"{name}: {error!r}")  # its victim was hurt already
            time.sleep(max(0.0, seconds))
        self.pool.note("heal")

    def _draw(self):
        """Draw a fault, and none twice before each has been drawn once: a short soak is to see them all."""
        if not self._deck:
            self._deck = self.chance.sample(sorted(self._faults), len(self._faults))
        return self._deck.pop()

    def _someone(self):
        """Draw a process; mostly one that holds a lock, as there is most to be harmed."""
        alive = [worker for worker in self.pool.workers if worker.alive]
        holding = self._holding() if self.chance.random() < 0.7 else set()
        return self.chance.choice([worker for worker in alive if worker.process.pid in holding] or alive)

    def _holding(self):
        try:
            queues = [self.pool.zoo.payloads(key) for key in self.pool.keys]
        except KazooException:
            return set()
        return {queue[0].pid for queue in queues if queue and queue[0] is not None}

    # --- processes ----------------------------------------------------------------------------------------------

    def _kill(self):
        wanted = self._someone()
        victim = wanted if wanted in self.mortal else self.chance.choice(self.mortal)
        self.mortal.remove(victim)
        victim.kill()
        yield
        self.mortal.append(self.start())

    def _pause(self):
        victim = self._someone()
        victim.pause()
        yield
        victim.resume()

    def _alarm(self):
        for _ in range(10):
            victim = self._someone()
            self.pool.note("alarm", target=victim.name)
            os.kill(victim.process.pid, signal.SIGALRM)
            time.sleep(self.chance.uniform(0, 0.1))
        yield

    def _strike(self, action):
        victim = self._someone()
        point = self.chance.choice(FAULTPOINTS)
        self.pool.note(action, target=victim.name, point=point)
        victim.tell("strike", point=point, action=action, seconds=self.chance.uniform(0.1, 2.5))
        yield

    # --- connections --------------------------------------------------------------------------------------------

    def _cut(self):
        self.pool.note("cut")
        self.chance.choice(self.proxies).cut_all()
        yield

    def _lose(self):
        proxy = self.chance.choice(self.proxies)
        opcode = self.chance.choice([CREATE2, DELETE, MULTI, GET_CHILDREN, GET_DATA])
        kill = self.chance.choice([proxy.kill_before_op, proxy.kill_after_op])
        self.pool.note("lose", opcode=opcode, how=kill.__name__)
        kill(opcode)
        yield

    def _half_open(self):
        proxy = self.chance.choice(self.proxies)
        which = self.chance.choice(["drop_requests", "drop_replies"])
        self.pool.note("half-open", which=which)
        setattr(proxy, which, True)
        yield
        proxy.drop_requests = proxy.drop_replies = False
        proxy.cut_all()  # bytes are missing: no such connection can go on

    def _refuse(self):
        proxy = self.chance.choice(self.proxies)
        self.pool.note("refuse")
        proxy.refuse = True
        proxy.cut_all()
        yield
        proxy.refuse = False

    def _delay(self):
        proxy = self.chance.choice(self.proxies)
        self.pool.note("delay")
        proxy.delay = self.chance.uniform(0.01, 0.4)
        yield
        proxy.delay = 0.0

    # --- ZooKeeper ----------------------------------------------------------------------------------------------

    def _expire(self):
        victim = self._someone()
        session = victim.ask("session")
        self.pool.note("expire", target=victim.name)
        expire(self.ensemble.hosts, session)
        self.pool.note("done", of="expire", target=victim.name)
        yield

    def _delete(self, position):
        key = self.chance.choice(self.pool.keys)
        zoo = self.pool.zoo
        for _ in range(20):  # a holder is gone soon
            with contextlib.suppress(KazooException, IndexError):
                path = f"{zoo.base}/{key}/{zoo.children(key)[position]}"
                token = zoo.client.get(path)[1].czxid
                self.pool.note("delete", key=key, path=path, token=token)
                zoo.client.delete(path)
                self.pool.note("done", of="delete", key=key, path=path, token=token)
                break
        yield

    def _kill_server(self):
        server = self.chance.choice(self.ensemble.servers)
        self.pool.note("kill server", number=server.number)
        server.kill()
        yield
        server.start()
        server.wait_ready()

    def _pause_server(self):
        server = self.chance.choice(self.ensemble.servers)
        self.pool.note("pause server", number=server.number)
        server.pause()
        yield
        server.resume()
