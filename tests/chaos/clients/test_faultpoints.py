"""A fault of one contender at a named moment of the protocol: no lock is held twice, and the others are served."""

import time

import psutil
import pytest
from support.chaos.checker import ROOM
from support.chaos.faultpoints import FAULTPOINTS
from support.zoo import eventually

TICK = 0.5  # seconds, of the test's servers
T = 3.0  # seconds, the session timeout; the lease is 1.2
NAP = 1.5  # seconds that the protocol sleeps: longer than the lease, shorter than the session
LEFT_BEHIND = 2.0  # seconds that a node may outlive its contender; promised
EXPIRED = T + 2 * TICK + 1  # seconds by which the session of a stopped process is over

WAKING = ("on_wake", "before_grant")
RELEASING = ("before_delete", "after_delete_sent")


def struck(worker, action):
    if action == "kill":
        return not worker.alive
    if action == "pause":
        return bool(psutil.Process(worker.process.pid).status() == psutil.STATUS_STOPPED)
    return bool(worker.ask("struck"))


def queued(pool, worker, count):
    known, names = worker.ask("known"), pool.zoo.children("k")
    return len(known) == count and all(any(guid in name for name in names) for guid in known)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("action", ["raise", "sleep", "fork", "pause", "kill"])
@pytest.mark.parametrize("point", FAULTPOINTS)
def test_a_fault_at_any_step_of_a_contender_harms_no_other(pool, point, action):
    victim, other = pool.start("A", "B", session_timeout=T)
    other.must_acquire(owner="ahead")
    victim.tell("strike", point=point, action=action, seconds=NAP).result()
    timeout = 12.0
    began = time.monotonic()
    first = victim.tell("turn", **{"as": "main"}, key="k", timeout=timeout, seconds=0.3)
    if point in WAKING + RELEASING:
        pool.wait_contenders(2)
    else:
        eventually(lambda: struck(victim, action), 5, "the moment did not come")
    second = other.tell("turn", **{"as": "behind"}, key="k", timeout=timeout, seconds=0.3)
    eventually(lambda: queued(pool, other, 2), 5)
    other.release(owner="ahead").result()
    eventually(lambda: struck(victim, action), 5, "the moment did not come")

    if action == "pause":
        pool.note("pause", target="A")
        until = time.monotonic() + T + 1
        eventually(lambda: second.done() or time.monotonic() > until, EXPIRED)
        time.sleep(max(0.0, until - time.monotonic()))
        victim.resume()
    if action == "kill":
        pool.note("kill", target="A")
    else:
        answer = first.result(timeout + ROOM + T + 1)
        if action == "raise":
            # Either it is told, or it has its turn; but it is not left to wait for its deadline.
            assert time.monotonic() - began < timeout / 2, f"the one that was struck was kept waiting: {answer}"
        assert answer["t"] - began <= timeout + ROOM
        assert "release" not in answer or not answer["release"]["error"] or answer["lost"], answer
    second.granted(timeout + ROOM + T + 1)

    pool.zoo.assert_empty(EXPIRED if action == "kill" else LEFT_BEHIND)
    if action != "kill":
        rest = {"members": 0, "guids": 0, "departures": 0, "kept": 0}
        eventually(lambda: rest.items() <= victim.ask("gauge").items(), LEFT_BEHIND, f"{victim.ask('gauge')}")
        victim.use()
    pool.assert_kept()
