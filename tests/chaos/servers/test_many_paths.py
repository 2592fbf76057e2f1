"""A process with too many locks is refused in time: when it crashes, the servers and other projects go on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.ensemble import Ensemble
from support.many_paths import fill_and_crash, restart
from support.zoo import Zoo, namespace

from django_zklock import zk_lock

pytestmark = pytest.mark.zookeeper

LOCKS = 2600  # with paths of 840 bytes: more than servers can read, with their default settings


@pytest.fixture(params=[1, 3], ids=["one server", "three servers"])
def ensemble(request: pytest.FixtureRequest) -> Iterator[Ensemble]:
    """Servers of the test's own."""
    with Ensemble(nodes=request.param) as ensemble:
        yield ensemble


@pytest.mark.timeout(300)
def test_the_crash_of_a_process_that_wanted_too_many_locks_harms_nobody(ensemble: Ensemble) -> None:
    """Another project keeps its lock meanwhile, and gets others; each server starts again."""
    with namespace(ensemble):
        greedy = Zoo(ensemble.hosts, ensemble)
        with zk_lock("other", timeout=10) as hold:
            fill_and_crash(greedy, ensemble, LOCKS)
            hold.check()
            with zk_lock("another", timeout=10):
                pass
        restart(ensemble)
        with zk_lock("other", timeout=30):
            pass
        greedy.close()
