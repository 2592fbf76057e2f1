"""A hold that is over goes without a cleanup job, also if its process has ended and nobody uses its key again."""

from functools import partial
from unittest import mock

import pytest
from support.faults import acquire_once, die
from support.locking import as_json, zklock
from support.zoo import ROOM, eventually, guid_of

from django_zklock import zk_semaphore
from django_zklock.core.protocol import operator_holds
from django_zklock.core.zk import process
from django_zklock.inspection import look_at, snapshot
from django_zklock.operations import clear_limit, hold_lock, set_limit

pytestmark = pytest.mark.usefixtures("emptied")

SHORT = 0.1  # seconds
LONG = 600.0
WHY = {"reason": "deploy 42", "by": "anna"}


def rest(key, seconds):
    acquire_once(key, min_hold=seconds)


def hold(key, seconds):
    hold_lock(key, seconds=seconds, **WHY)


def make_over(zoo, make, *keys):
    """Make holds whose process has ended, and whose time is over for everybody."""
    with mock.patch.object(operator_holds, "end_in_time"):  # it does not end the first one itself
        for key in keys:
            make(key, 1.0)
        die()
    stamp, first = zoo.client.create(f"{zoo.chroot}/stamp-", sequence=True, makepath=True, include_data=True)
    eventually(lambda: zoo.client.set(stamp, b"").mtime > first.mtime + 2200)


@pytest.mark.parametrize("make", [rest, hold])
@pytest.mark.parametrize("look", [partial(look_at, "a/b"), partial(zklock, "doctor")])
def test_each_look_deletes_a_hold_that_is_over(zoo, look, make):
    make_over(zoo, make, "a/b")

    def is_gone():
        look()
        return not zoo.children("a/b")

    eventually(is_gone)


def test_a_short_process_deletes_what_its_look_has_found(zoo, monkeypatch):
    monkeypatch.setattr("django_zklock.core.zk.session.LAST_REPLIES", ROOM)
    make_over(zoo, rest, "a/b")
    snapshot(max_age=0)
    process.reset(2 * ROOM)
    assert zoo.children("a/b") == []


def test_a_long_process_deletes_its_own_hold_at_its_end(zoo):
    rest("a", SHORT)
    eventually(lambda: not zoo.contenders())


def test_holds_that_are_over_are_counted(zoo, monkeypatch):
    make_over(zoo, rest, "a", "b")
    monkeypatch.setattr(operator_holds, "MOST_DELETED", 0)  # this process deletes none
    text = "Holds that are over, and whose processes have ended: 2."
    eventually(lambda: text in zklock("doctor"))
    assert text in zklock("list")
    assert text in as_json("list")["skipped"][0]
    assert snapshot(max_age=0).complete
    assert len(zoo.contenders()) == 2


def test_only_holds_that_are_over_are_deleted(zoo):
    rest("a/b", LONG)
    die()
    (hold,) = zoo.children("a/b")
    make_over(zoo, rest, "other")
    unreadable = zoo.client.create(f"{zoo.base}/live/_c_{guid_of(hold)}-lock-0000000000", b"?", makepath=True)
    eventually(lambda: snapshot(max_age=0) and not zoo.children("other"))
    assert zoo.children("a/b") == [hold]
    assert zoo.client.exists(unreadable)


def test_the_marker_of_a_cleared_limit_goes_with_a_look(zoo):
    """The last contender has left it, and nobody comes again. A limit that is set stays."""
    for key in ("a", "b"):
        with zk_semaphore(key, limit=2):
            set_limit(key, 3, **WHY)
            if key == "a":
                clear_limit(key, **WHY)
    assert zoo.names(f"{zoo.base}/a") == ["!limit:0:"]
    eventually(lambda: snapshot(max_age=0) and not zoo.names(f"{zoo.base}/a"))
    assert zoo.names(f"{zoo.base}/b") == ["!limit:3:"]
