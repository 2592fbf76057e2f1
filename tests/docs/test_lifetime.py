"""The code in the how-tos about release requests, limits of the hold time, and locks that linger runs."""

from __future__ import annotations

from pathlib import Path

from support.docs import assert_passes, assert_settings, files_of, written

ASKING = """
import threading
from asking import make_way
from celery import Celery
from reindexing import reindex
import pytest
from django_zklock.exceptions import LockChangedHands
import tasks

app = Celery("documented", broker="memory://")
app.set_default()


class Asks(list):
    def append(self, document):
        super().append(document)
        if len(self) == 1:
            make_way("search/index", "anna")
            threading.Event().wait(0.5)


def test_a_loop_stops_when_somebody_asks(zklock):
    index = Asks()
    assert reindex(["a", "b", "c"], index) == "stopped for anna: deploy 42"
    assert index == ["a"]
    assert reindex(["a"], []) == "done"
    with pytest.raises(LockChangedHands):
        make_way("search/index", "anna")


def test_a_task_goes_on_until_somebody_asks(zklock):
    assert tasks.reindex_all(["a"]) == []
"""

BOUNDED = """
import pytest
from bounded import import_prices, nightly
from django_zklock import zk_lock
from django_zklock.exceptions import LockBusy, LockLost
from watching import slow


def test_work_that_takes_too_long_is_told_of_and_stopped(zklock, settings):
    import threading
    settings.ZKLOCK = {**settings.ZKLOCK, "LOCKS": {"short": {"path": "short", "max_hold": 0.4, "warn_after": 0.2}}}
    with pytest.raises(LockLost, match="was lost: it was held for longer than max_hold, 0.4 s"), zk_lock("short"):
        threading.Event().wait(20)
    assert slow == ["short"]
    done = []
    import_prices("acme", [lambda: done.append(1)])
    assert done == [1]


def test_a_job_is_done_once(zklock):
    done = []
    nightly(lambda: done.append("job"))
    with pytest.raises(LockBusy, match="held for at least 300 s"):
        nightly(lambda: done.append("job"))
    assert done == ["job"]
"""


LINGERING = """
from celery import Celery
from django_zklock.inspection import look_at
from importing import import_prices
import tasks

app = Celery("documented", broker="memory://")
app.set_default()


def test_all_rows_have_one_znode(zklock):
    seen = []
    import_prices(["a", "b", "c"], lambda row: seen.append(look_at("prices/acme").holders[0].token))
    assert len(seen) == 3
    assert len(set(seen)) == 1
    assert look_at("prices/acme") is not None


def test_a_task_runs(zklock):
    assert tasks.book(7, 5) == "5 on 7"
"""


def test_the_examples_of_release_requests_run(tmp_path: Path) -> None:
    assert_passes(written("how-to/ask-a-holder-to-release.md", tmp_path), ASKING, 2)


def test_the_examples_of_linger_run(tmp_path: Path) -> None:
    assert_passes(written("how-to/linger.md", tmp_path), LINGERING, 2)
    assert_settings(files_of("how-to/linger.md")["settings.py"])


def test_the_examples_of_bounding_a_hold_run(tmp_path: Path) -> None:
    assert_passes(written("how-to/bound-a-hold.md", tmp_path), BOUNDED, 2)
