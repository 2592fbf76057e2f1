"""The servers of an ensemble are restarted one after another, and nobody who uses a lock notices."""

import contextlib
import itertools
import json
import threading
import time
from collections import Counter

import pytest
from support.celeryfolder import HOME
from support.ensemble import Ensemble
from support.restarts import END, KEYS, OVERLAPS
from support.worker import Worker, outcome
from support.zoo import eventually

pytestmark = pytest.mark.timeout(200)

AWAY = 3.0  # seconds for which each server is away
AT_ONCE = 6  # tasks that have not ended
VIEWS = "from support.restarts import main; main()"


@pytest.fixture
def ensemble():
    with Ensemble(nodes=3, tick=2.0) as ensemble:
        yield ensemble


class Sender:
    """Sends one task after another, so that some are always under way."""

    def __init__(self, worker):
        self.results = []
        self._worker = worker
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._send)
        self._thread.start()

    def _send(self):
        for task, key in itertools.cycle(itertools.product(["pack", "recount"], KEYS)):
            while sum(not result.ready() for result in self.results[-2 * AT_ONCE :]) >= AT_ONCE:
                if self._ended.wait(0.02):
                    return
            if self._ended.wait(0.02):
                return
            self.results.append(self._worker.send(task, key))

    def stop(self):
        self._ended.set()
        self._thread.join()


def test_a_rolling_restart_disturbs_neither_views_nor_tasks(ensemble, arena, tmp_path):
    """All with default options: no 503, no lost lock, no task that fails, and no work that is not alone."""
    env = {"ZKLOCK_URL": f"zk://{ensemble.hosts}{arena.chroot}", HOME: str(tmp_path)}
    with contextlib.ExitStack() as stack:
        workers = [stack.enter_context(Worker(arena, tmp_path, tasks="support.restarts", env=env)) for _ in range(2)]
        sites = [stack.enter_context(arena.running(VIEWS, **env)) for _ in range(2)]
        sender = Sender(workers[0])
        stack.callback(sender.stop)
        for key in KEYS:
            eventually(lambda key=key: len(arena.children(f"stock/{key}")) > 2, 20)
        for server in ensemble.servers:
            server.stop()
            time.sleep(AWAY)
            server.start()
            server.wait_ready()
        sender.stop()
        done = Counter(outcome(result) for result in sender.results)
        (tmp_path / END).touch()
        seen = [json.loads(site.communicate(timeout=30)[0]) for site in sites]
    assert set(done) == {f"{work}-{key}" for work in ("stock", "count") for key in KEYS}, done
    assert [set(counts) for counts in seen] == [{"200", "held", "suspect"}] * 2, seen
    assert not (tmp_path / OVERLAPS).exists(), (tmp_path / OVERLAPS).read_text()
