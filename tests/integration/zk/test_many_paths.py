"""A process with as many locks as it may have ends without harm, also on servers with the least reserve."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.ensemble import Ensemble
from support.many_paths import fill_and_crash, restart
from support.zoo import namespace

from django_zklock import zk_lock

pytestmark = pytest.mark.zookeeper

BUFFER = 2**17
EXTRA = 1024  # the least reserve that servers keep


@pytest.fixture
def small() -> Iterator[Ensemble]:
    """A server with the smallest buffer that can be set."""
    options = (f"-Djute.maxbuffer={BUFFER}", f"-Dzookeeper.jute.maxbuffer.extrasize={EXTRA}")
    with Ensemble(java_options=options) as ensemble:
        yield ensemble


def test_a_server_survives_the_crash_of_a_process_with_as_many_locks_as_it_may_have(small: Ensemble) -> None:
    """The server writes their paths into one transaction, and reads it at its next start."""
    with namespace(small) as zoo:
        assert fill_and_crash(zoo, small, 400, 1, f"&jute_maxbuffer={BUFFER}") > 120
        restart(small)
        with zk_lock("other", timeout=20):
            pass


HOLD = """
import time
from contextlib import ExitStack
from django_zklock.exceptions import TooManyLocks
long = "/".join(["k" * 190] * 4)
with ExitStack() as stack:
    holds = []
    try:
        for number in range(400):
            holds.append(stack.enter_context(zk_lock(f"{long}/{number}", timeout=30)))
    except TooManyLocks:
        pass
    end = time.monotonic() + 2
    while time.monotonic() < end:
        for hold in holds:
            hold.check()
        time.sleep(0.05)
    print(len(holds))
"""


def test_a_process_with_as_many_locks_as_it_may_have_keeps_them(small: Ensemble) -> None:
    """Its heartbeats fit into the buffer, too."""
    with namespace(small) as zoo:
        process = zoo.spawn(HOLD, ZKLOCK_URL=f"{zoo.url(session_timeout=2)}&jute_maxbuffer={BUFFER}")
        printed, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert int(printed) > 120
