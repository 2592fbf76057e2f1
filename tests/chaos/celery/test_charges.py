"""A task without `acks_late` does its work at most once, through deadlocks and lost locks."""

import contextlib
import random
import time
from collections import Counter

import pytest
from kazoo.exceptions import NoNodeError
from support.policytasks import POLICIES
from support.worker import Worker

KEYS = [f"account-{number}" for number in range(8)]
pytestmark = pytest.mark.timeout(200)


def test_no_work_begins_again_unless_its_task_says_so(request, zoo, tmp_path):
    """Each task ends. One whose policy lets it wait has worked once, or says why not."""
    chance, journal = random.Random(request.config.getoption("--soak-seed")), tmp_path / "journal"
    with Worker(zoo, tmp_path, concurrency=8) as worker:
        sent = []
        for _ in range(200):
            policy = chance.choice(list(POLICIES))
            sent.append(worker.send(f"charge.{policy}", *chance.sample(KEYS, 2), str(journal)))
        until = time.monotonic() + 120
        while not all(result.ready() for result in sent) and time.monotonic() < until:
            for path in zoo.contenders()[:1]:
                with contextlib.suppress(NoNodeError):
                    zoo.client.delete(path)
            time.sleep(chance.uniform(0.1, 0.5))
        states = Counter(str(result.state) for result in sent)
        runs = Counter(line.split()[0] for line in journal.read_text().splitlines())
        assert states.keys() <= {"SUCCESS", "FAILURE", "REVOKED"}
        assert max(runs.values()) == 1
        assert states["SUCCESS"] > 0
        assert states["FAILURE"] > 0
