"""The guides to holds, limits and operators: the files of each page pass a test in a project of their own."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.docs import assert_passes, assert_settings, files_of, written

ASKING = """
import threading
from django_zklock.operations import request_release
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
            request_release("search/index", "deploy 42", by="anna")
            threading.Event().wait(0.5)


def test_a_loop_stops_when_somebody_asks(zklock):
    index = Asks()
    assert reindex(["a", "b", "c"], index) == "stopped for anna: deploy 42"
    assert index == ["a"]
    assert reindex(["a"], []) == "done"
    with pytest.raises(LockChangedHands):
        request_release("search/index", "deploy 42", by="anna")


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
from django_zklock.inspection import look_at
from importing import import_prices


def test_all_rows_have_one_znode(zklock):
    seen = []
    import_prices(["a", "b", "c"], lambda row: seen.append(look_at("prices/acme").holders[0].token))
    assert len(seen) == 3
    assert len(set(seen)) == 1
    assert look_at("prices/acme") is not None
"""

STEPPING_IN = """
import pytest
from intervening import drained_deploy, free, make_way
from django_zklock import zk_lock
from django_zklock.exceptions import LockBusy, LockLost


def test_a_deploy_is_drained(zklock):
    said = []
    def deploy():
        with pytest.raises(LockBusy) as caught, zk_lock("reports/nightly", timeout=0):
            pass
        said.append(str(caught.value))
    drained_deploy(deploy)
    assert "is held by operator anna until 20" in said[0] and said[0].endswith("UTC: deploy 42.")
    with zk_lock("reports/nightly", timeout=0):
        pass


def test_a_lock_is_broken(zklock):
    with pytest.raises(LockLost, match="was lost: it was broken by anna: stuck since Monday"):
        with zk_lock("invoice/7") as hold:
            assert free("invoice/7", "stuck since Monday", "anna").holder.token == hold.token
            hold.wait_lost(2)


def test_a_holder_is_asked(zklock):
    with zk_lock("invoice/7") as hold:
        (holder,) = make_way("invoice/7", "anna")
        assert holder.token == hold.token
        assert str(hold.wait_release_requested(5)) == "anna: deploy 42"
"""

PERMITS = """
from reports import build, print_label
from slowing import full_speed, slow_down
from watching import in_use

import pytest
from django_zklock import zk_lock, zk_semaphore
from django_zklock.exceptions import LockBusy


def test_permits_are_taken(zklock):
    printed = []
    print_label("fragile", printed)
    assert printed[0][1] == "fragile" and printed[0][0] > 0
    assert build("monthly") == "monthly is built"


def test_one_owner_has_one_permit(zklock):
    with zk_semaphore("printers", 2, reentrant=False) as hold, zk_semaphore("printers", 2) as again:
        assert again.token == hold.token
        assert in_use("printers") == (1, 2)
        assert zk_semaphore("printers", 2).owned(), "another object"
        with pytest.raises(LockBusy), zk_semaphore("printers", 2, reentrant=False):
            pass
        assert zk_semaphore("printers", 2, reentrant=False).acquire() is None


def test_a_limit_counts_until_it_is_cleared(zklock):
    limit = slow_down("monthly", "anna")
    assert (limit.limit, limit.by, limit.reason) == (1, "anna", "the replica lags")
    with zk_lock("reports/monthly", limit=3):
        assert in_use("reports/monthly") == (1, 1)
    assert full_speed("monthly", "anna")
    with zk_lock("reports/monthly", limit=3):
        assert in_use("reports/monthly") == (1, 3)
    assert in_use("reports/monthly") == (0, None)
"""

STREAMING = """
import pytest
import reports
from django.test import RequestFactory


def test_the_stock_does_not_change_under_a_report(zklock):
    parts = iter(reports.streamed(RequestFactory().get("/")))
    assert next(parts) == b"lamp,3\\r\\n"
    zklock.assert_held("stock")
    assert list(parts) == [b"desk,1\\r\\n"]
    zklock.assert_free("stock")


@pytest.mark.parametrize("view", [reports.short, reports.long])
def test_a_complete_body_needs_no_lock(zklock, view):
    response = view(RequestFactory().get("/"))
    zklock.assert_free("stock")
    assert response.getvalue() == b"lamp,3\\r\\ndesk,1\\r\\n"
    response.close()
"""

HANDING = """
import pytest
from celery import Celery
from django.test import RequestFactory
from django_zklock import zk_lock
from django_zklock.exceptions import LockBusy
from exports import tasks, views

app = Celery("documented", set_as_current=True)
app.conf.update(task_always_eager=True, task_eager_propagates=True)


def test_a_task_goes_on_under_the_lock_of_a_request(zklock):
    assert views.start(RequestFactory().get("/"), 7).status_code == 202
    assert tasks.done[-1] == 7
    with zklock.busy_by("export/8"), pytest.raises(LockBusy):
        views.start(RequestFactory().get("/"), 8)


@pytest.mark.django_db(transaction=True)
def test_a_lock_is_handed_over_after_the_commit(zklock):
    from exports import saving

    saving.save_and_export(9)
    assert tasks.done[-1] == 9


def test_a_copy_of_the_message_does_nothing(zklock):
    with zk_lock("export/1") as hold:
        text = hold.hand_over(within=60)
    assert tasks.export(1, text) is None
    assert "cannot be adopted" in tasks.export(1, text)
"""

GUIDES = {
    "how-to/bound-a-hold": BOUNDED,
    "how-to/hand-over": HANDING,
    "how-to/intervene": ASKING,
    "how-to/linger": LINGERING,
    "how-to/semaphores": PERMITS,
    "reference/operations": STEPPING_IN,
}


@pytest.mark.parametrize("page", GUIDES)
def test_the_examples_of_a_guide_do_as_it_says(page: str, tmp_path: Path) -> None:
    test = GUIDES[page]
    assert_passes(written(f"{page}.md", tmp_path), test, test.count("\ndef test_"))


@pytest.mark.parametrize("page", ["linger", "semaphores"])
def test_the_settings_of_a_guide_are_sound(page: str) -> None:
    assert_settings(files_of(f"how-to/{page}.md")["settings.py"])


def test_the_examples_for_streamed_responses_do_as_the_guide_says(tmp_path: Path) -> None:
    assert_passes(written("how-to/streaming-responses.md", tmp_path), STREAMING, 3)
