"""A process with too many locks is refused in time: when it crashes, the servers and other projects go on."""

import pytest
from support.chaos.servers import repair
from support.ensemble import Ensemble
from support.faults import acquire_once
from support.zoo import Zoo, eventually, namespace

from django_zklock import zk_lock

SESSION = 4.0  # seconds

# With paths of 840 bytes, 2,600 locks are more than servers can read, with their default settings.
FILL = """
import os
from contextlib import ExitStack
from django_zklock.exceptions import TooManyLocks
long = "/".join(["k" * 190] * 4)
with ExitStack() as stack:
    try:
        for number in range(2600):
            stack.enter_context(zk_lock(f"{long}/{number}", timeout=30, abort_on="never"))
    except TooManyLocks as error:
        print(number, error, flush=True)
    os._exit(0)
"""


@pytest.fixture(params=[1, 3], ids=["one server", "three servers"])
def ensemble(request):
    with Ensemble(nodes=request.param) as ensemble:
        yield ensemble


@pytest.mark.timeout(300)
def test_the_crash_of_a_process_that_wanted_too_many_locks_harms_nobody(ensemble):
    with namespace(ensemble), Zoo(ensemble.hosts, ensemble) as greedy:
        with zk_lock("other", timeout=10) as hold:
            process = greedy.spawn(FILL, **greedy.environment(session_timeout=SESSION))
            printed, errors = process.communicate(timeout=200)
            assert "Use shorter keys" in printed, (printed, errors)
            assert len(greedy.contenders()) == int(printed.split()[0])
            eventually(lambda: not greedy.contenders(), 10 * SESSION, "the session does not end")
            hold.check()
            acquire_once("another", timeout=10)
        for server in ensemble.servers:
            server.stop()
        repair(ensemble)  # reads all transactions again
        acquire_once("other", timeout=30)
