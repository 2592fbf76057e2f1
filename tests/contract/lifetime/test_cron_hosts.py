"""Jobs that several hosts start, each by its own clock, under a lock that is held for at least a time."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest
from support.ensemble import Ensemble
from support.zoo import Zoo, namespace, next_line

from django_zklock import zk_lock
from django_zklock.queue.nodes import Payload

pytestmark = [pytest.mark.zookeeper, pytest.mark.chaos]


@pytest.fixture
def real(single: Ensemble) -> Iterator[Zoo]:
    """A namespace on the real server; the rests of holds are gone at the end, as their processes are."""
    with namespace(single) as zoo:
        yield zoo
        for path in zoo.contenders():
            zoo.client.delete(path)


def test_a_process_that_ends_right_after_its_work_keeps_the_lock(real: Zoo) -> None:
    """As a cron job does; one that is killed under the lock does not, as nobody knows what it has done."""
    done = real.spawn("with zk_lock('k', min_hold=3): print('work')")
    said, problems = done.communicate(timeout=30)
    assert (said, done.returncode) == ("work\n", 0), problems
    (name,) = real.children("k")
    payload = Payload.decode(real.client.get(f"{real.base}/k/{name}")[0])
    assert payload is not None
    end = real.client.exists(f"{real.base}/k/{name}").mtime / 1000 + float(payload.about["seconds"])
    with zk_lock("k", timeout=20) as hold:
        assert end <= real.client.set(hold.path, b"x").mtime / 1000 <= end + 1.5
    with real.running("with zk_lock('k', min_hold=300): print('work'); input()") as killed:
        assert next_line(killed) == "work"
    with zk_lock("k", timeout=20):
        pass


JOB = """
import sys, time
from django_zklock.exceptions import LockBusy
sys.stdin.readline()
time.sleep(float(sys.argv[1]))
try:
    with zk_lock("cron/nightly", timeout=0, min_hold=300):
        print("ran")
except LockBusy:
    print("somebody else does")
"""


def test_twelve_hosts_that_start_a_job_at_about_the_same_time_run_it_once(real: Zoo) -> None:
    """Their clocks differ by more than the job takes."""
    hosts: list[subprocess.Popen[str]] = []
    try:
        hosts += [real.spawn(JOB, str(0.15 * number)) for number in range(12)]
        for host in hosts:
            assert host.stdin is not None
            host.stdin.write("go\n")
            host.stdin.flush()
        said = [host.communicate(timeout=60) for host in hosts]
    finally:
        for host in hosts:
            host.kill()
            host.wait()
    assert sorted(out for out, _ in said) == ["ran\n"] + 11 * ["somebody else does\n"], said
