"""Lock coordinators and their clients in all languages: under faults, and under load through upgrades."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
import re
import signal
import time
from collections import Counter, defaultdict
from typing import NamedTuple

import grpc
import pytest
from support import lease_clients
from support.chaos.checker import check_history
from support.chaos.history import Recorder, read
from support.chaos.holds import time_of
from support.coordinators import stub_of
from support.ensemble import Ensemble
from support.lease_clients import SOAKS, Soak
from support.proxy import Proxy
from support.relay import Relay
from support.serving import Serving
from support.zoo import eventually

from django_zklock.contrib.leases.access import hash_of
from django_zklock.contrib.leases.v1 import lock_coordinator_pb2 as pb
from zklock_client import AsyncZkLockClient, ZkLockError

pytestmark = [pytest.mark.timeout(900)]

KEYS = 6
SECONDS = 60.0
COORDINATORS = 3
TERMS = (0.5, 1.0, 3.0)

LEASES = 200  # at a time; as many calls wait
TERM = 6.0
SESSION = 40.0  # long enough for such leases, however long ago the last heartbeat of the coordinator was
USABLE = 0.9  # of a lease
LATE = 0.1  # of a lease, at most
BURST = 2000
RESTARTS = 20
RESTART_EVERY = 7.0
LASTING_TERM = 60.0
FORGOTTEN_TERM = 4.0
LASTING_SESSION = 300.0
LEFT = LASTING_TERM * USABLE * 2 / 3  # seconds of a lease, at least, when a restart begins
TOKEN = "t" * 40
LOST = re.compile("LockLost|the lock was lost")


class Coordinator(NamedTuple):
    serving: Serving
    proxy: Proxy
    link: Relay


class Nemesis:
    def __init__(self, coordinators, chance):
        self.done = Counter()
        self._coordinators = coordinators
        self._chance = chance

    async def run(self, until):
        faults = [self.kill, self.pause, self.replace, self.cut, self.hang, self.reset, self.freeze]
        while time.monotonic() < until:
            for fault in self._chance.sample(faults, len(faults)):
                self.done[fault.__name__] += 1
                async with contextlib.asynccontextmanager(fault)(self._chance.choice(self._coordinators)):
                    await asyncio.sleep(self._chance.uniform(0.3, 6.0))
                await asyncio.sleep(self._chance.uniform(0.2, 1.5))

    async def kill(self, coordinator):
        coordinator.serving.kill()
        yield
        await asyncio.to_thread(coordinator.serving.start)

    async def pause(self, coordinator):
        with coordinator.serving.paused():
            yield

    async def replace(self, coordinator):
        assert await asyncio.to_thread(coordinator.serving.drain) == 0
        await asyncio.to_thread(coordinator.serving.start)
        yield

    async def cut(self, coordinator):
        coordinator.proxy.cut_all()
        yield

    async def hang(self, coordinator):
        coordinator.proxy.hang = True
        yield
        coordinator.proxy.hang = False

    async def reset(self, coordinator):
        coordinator.link.reset()
        yield

    async def freeze(self, coordinator):
        coordinator.link.freeze()
        yield
        coordinator.link.heal()


@pytest.fixture(scope="module")
def ensemble():
    with Ensemble(nodes=1, max_session_timeout=LASTING_SESSION) as ensemble:
        yield ensemble


@pytest.fixture(scope="module", autouse=True)
def compiled():
    """The programs start at the same time."""
    for language in SOAKS:
        lease_clients.soak(language)


async def test_leases_exclude_each_other_under_faults(arena, tmp_path, pytestconfig):
    """And no client that vanishes keeps its lock."""
    seed = pytestconfig.getoption("--soak-seed")
    with contextlib.ExitStack() as stack:
        coordinators = []
        for _ in range(COORDINATORS):
            proxy = stack.enter_context(Proxy(arena.address))
            serving = stack.enter_context(Serving(arena, hosts=proxy.address))
            coordinators.append(Coordinator(serving, proxy, stack.enter_context(Relay(serving.port))))
        addresses = [f"127.0.0.1:{coordinator.link.port}" for coordinator in coordinators]
        programs = [
            stack.enter_context(
                Soak(language, addresses, tmp_path, tasks=KEYS, keys=KEYS, terms=TERMS, wait=3, hold=3, seconds=SECONDS)
            )
            for language in SOAKS
        ]
        nemesis = Nemesis(coordinators, random.Random(seed))
        await nemesis.run(time.monotonic() + SECONDS)
        for program in programs:
            await asyncio.to_thread(program.assert_ended)
        for coordinator in coordinators:
            assert await asyncio.to_thread(coordinator.serving.drain) == 0
    verdict = check_history(read(tmp_path.glob("*.jsonl")))
    assert verdict.ok, f"--soak-seed={seed}: {verdict.short()}"
    grants = Counter(hold.process for holds in verdict.run.holds.values() for hold in holds)
    print(nemesis.done, grants)
    assert min(grants[language] for language in SOAKS) > 2, "hardly a lease was granted"


# --- load and upgrades ------------------------------------------------------------------------------------------------


class Load:
    """Bursts, paused programs, and upgrades of the coordinators, one after the other."""

    def __init__(self, coordinators, programs, home):
        self._coordinators = coordinators
        self._programs = programs
        self._recorder = Recorder(home, "load")

    async def run(self, seconds):
        rounds = len(self._programs) - 1
        for number in range(rounds):
            upgraded = self._coordinators[number % len(self._coordinators)]
            stop = time.monotonic() + seconds / rounds
            await asyncio.gather(
                self.burst(),
                self.pause(self._programs[number], 1.5 * TERM),
                self.pause(self._programs[number + 1], TERM / 4),
                self.upgrade(upgraded),
            )
            await asyncio.sleep(max(0.0, stop - time.monotonic()))

    async def burst(self):
        """Have another program of the same client ask for one lock, many times at once."""

        async def ask(client):
            with contextlib.suppress(ZkLockError):
                async with client.lock("burst", wait=0):
                    pass

        addresses = [coordinator.address for coordinator in self._coordinators]
        async with AsyncZkLockClient(addresses, token=TOKEN, reply_timeout=30) as client:
            await asyncio.gather(*(ask(client) for _ in range(BURST)))

    async def pause(self, program, seconds):
        self._recorder.write("nemesis", what="pause", target=program.language)
        program.process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(seconds)
        program.process.send_signal(signal.SIGCONT)
        self._recorder.write("nemesis", what="resume", target=program.language)

    async def upgrade(self, coordinator):
        assert await asyncio.to_thread(coordinator.drain) == 0
        await asyncio.to_thread(coordinator.start)


async def test_leases_are_kept_and_waits_go_on_through_upgrades(arena, tmp_path, pytestconfig):
    """A lease that its program was not able to keep is no longer held when the program goes on."""
    seconds = pytestconfig.getoption("--soak-seconds")
    settings = {"CLIENTS": {"soak": {"TOKENS": [hash_of(TOKEN)]}}}
    with contextlib.ExitStack() as stack:
        coordinators = [
            stack.enter_context(Serving(arena, session_timeout=SESSION, leases=settings))
            for _ in range(COORDINATORS - 1)
        ]
        addresses = [coordinator.address for coordinator in coordinators]
        share = LEASES // len(SOAKS)
        programs = [
            stack.enter_context(
                Soak(
                    language,
                    addresses,
                    tmp_path,
                    token=TOKEN,
                    first=share * number,
                    tasks=2 * share,  # each key has two programs
                    keys=LEASES,
                    terms=[TERM],
                    hold=2 * TERM,
                    seconds=seconds,
                )
            )
            for number, language in enumerate(SOAKS)
        ]
        for program in programs:
            await asyncio.to_thread(eventually, program.has_begun, 30)
        await Load(coordinators, programs, tmp_path).run(seconds)
        for program in programs:
            await asyncio.to_thread(program.assert_ended)
        for coordinator in coordinators:
            assert await asyncio.to_thread(coordinator.drain) == 0
    verdict = check_history(read(tmp_path.glob("*.jsonl")))
    assert verdict.ok, verdict.short()
    judge_load(verdict.run)


def judge_load(run):
    """Leave out what a program cannot help: that a lease is lost, or kept late, because the program was paused."""

    def was_paused(event):
        return run.paused(event["p"], time_of(event) - 2 * TERM, time_of(event)) > 0

    ended = []
    late = defaultdict(float)  # by program: the share of a lease
    for call in run.calls:
        refused = None if call.answer is None or call.granted else call.answer
        if refused and not (LOST.search(refused["why"]) and was_paused(refused)):
            ended.append(refused)
        if call.lost and not was_paused(call.lost):
            ended.append(call.lost)
        for event in call.valids:
            left = float(event["until"]) - time_of(event)
            if left and time_of(event) > time_of(run.nemesis[0]) and not was_paused(event):
                late[call.process] = max(late[call.process], USABLE * 2 / 3 - left / TERM)
    grants = Counter(hold.process for holds in run.holds.values() for hold in holds)
    print(f"grants: {dict(grants)}, late: {dict(late)}, load: {os.getloadavg()}")
    reasons = Counter((event["p"], event["e"], event.get("why", "")) for event in ended)
    assert not ended, f"{len(ended)}: {reasons.most_common(5)}, load: {os.getloadavg()}"
    assert max(late.values()) <= LATE, late
    assert min(grants[language] for language in SOAKS) > LEASES / 2, "hardly a lease was granted"


# --- restarts with a state file -------------------------------------------------------------------------------------


class Restarts:
    """Restarts of a coordinator that has a state file, and faults of its connections meanwhile."""

    def __init__(self, coordinator, chance):
        self._coordinator = coordinator
        self._chance = chance
        self.lasted = []
        self.late = []  # by so many seconds, another client has got the lock of a lease that nobody kept
        self._serves_since = 0.0

    async def run(self):
        ends = [self._coordinator.serving.kill, self._stop] * (RESTARTS // 2)
        self._chance.shuffle(ends)
        faults = [self._coordinator.proxy.cut_all, self._coordinator.link.reset, bool]
        leases = []
        for number, end in enumerate(ends):
            began = time.monotonic()
            leases.append(asyncio.create_task(self._forget(f"forgotten-{number}")))
            await asyncio.sleep(self._chance.uniform(0.5, 2.0))
            self._chance.choice(faults)()
            ended = time.monotonic()
            await asyncio.to_thread(end)
            await asyncio.to_thread(self._coordinator.serving.start)
            self._serves_since = time.monotonic()
            self.lasted.append(self._serves_since - ended)
            self._chance.choice(faults)()
            await asyncio.sleep(max(0.0, began + RESTART_EVERY - time.monotonic()))
        await asyncio.gather(*leases)

    def _stop(self):
        assert self._coordinator.serving.drain() == 0

    async def _forget(self, key):
        """Take a lease and do not keep it. Note how late another client gets the lock, apart from a restart."""
        options = [("grpc.max_reconnect_backoff_ms", 500)]
        async with grpc.aio.insecure_channel(self._coordinator.serving.address, options=options) as channel:

            async def acquire(**more):
                wanted = pb.RecordLockRequest(
                    resource_path=key, client_id="x", session_timeout_ms=round(FORGOTTEN_TERM * 1000), **more
                )
                while True:
                    with contextlib.suppress(grpc.RpcError):  # it restarts
                        answer = await stub_of(channel).RecordLock(wanted, timeout=20, wait_for_ready=True)
                        if answer.acquired:
                            return answer
                    await asyncio.sleep(0.05)

            lease = await acquire(request_id=key)
            over = time.monotonic() + lease.lease_duration_ms / 1000
            await acquire(wait_blocking=True)
            granted = time.monotonic()
            self.late.append(granted - over if granted < over else granted - max(over, self._serves_since))


async def test_leases_survive_restarts_of_their_coordinator(arena, tmp_path, pytestconfig):
    """None is lost, and a restart prolongs one that nobody keeps by its term at most."""
    with contextlib.ExitStack() as stack:
        proxy = stack.enter_context(Proxy(arena.address))
        state = ("--state", str(tmp_path / "state"))
        serving = stack.enter_context(Serving(arena, *state, hosts=proxy.address, session_timeout=LASTING_SESSION))
        grpc_relay = stack.enter_context(Relay(serving.port))
        share = LEASES // len(SOAKS)
        programs = [
            stack.enter_context(
                Soak(
                    language,
                    [f"127.0.0.1:{grpc_relay.port}"],
                    tmp_path,
                    first=share * number,
                    tasks=2 * share,  # each key has two programs
                    keys=LEASES,
                    terms=[LASTING_TERM],
                    hold=LASTING_TERM / 3,
                    seconds=RESTARTS * RESTART_EVERY,
                )
            )
            for number, language in enumerate(SOAKS)
        ]
        for program in programs:
            await asyncio.to_thread(eventually, program.has_begun, 30)
        seed = pytestconfig.getoption("--soak-seed")
        restarts = Restarts(Coordinator(serving, proxy, grpc_relay), random.Random(seed))
        await restarts.run()
        for program in programs:
            await asyncio.to_thread(program.assert_ended, 120)
        assert not re.search(r'File ".*django_zklock/', serving.log()), (
            serving.log()
        )  # gRPC may log a call that it ends
    verdict = check_history(read(tmp_path.glob("*.jsonl")))
    assert verdict.ok, f"--soak-seed={seed}: {verdict.short()}"
    judge_restarts(verdict.run, restarts)
    judge_calls(verdict.run)


def judge_restarts(run, restarts):
    grants = Counter(hold.process for holds in run.holds.values() for hold in holds)
    print(f"restarts: {[round(seconds, 1) for seconds in restarts.lasted]}, grants: {dict(grants)}")
    print(f"late: {[round(seconds, 2) for seconds in restarts.late]}, load: {os.getloadavg()}")
    assert max(restarts.lasted) < LEFT / 2, "a restart took longer than leases last"
    assert min(restarts.late) > -0.1, "a lock was free before the end of its lease"
    assert max(restarts.late) < FORGOTTEN_TERM + 2.0, "a restart prolonged a lease by more than its term"
    assert min(grants[language] for language in SOAKS) > LEASES / 8, "hardly a lease was granted"


def judge_calls(run):
    """See that none of the clients has lost its lease, or kept it after the end that it was told."""
    refused = [call.answer for call in run.calls if call.answer is not None and not call.granted]
    print(f"refused: {Counter(answer['why'].partition(':')[0] for answer in refused)}")
    assert not [call.lost for call in run.calls if call.lost]
    assert not [answer for answer in refused if LOST.search(answer["why"])]
    for call in run.calls:
        for before, event in itertools.pairwise([event for event in (call.answer, *call.valids) if event]):
            assert time_of(event) <= before.get("until", 0.0), (before, event)
