"""A hold that is over goes without a cleanup job, also if its process has ended and nobody uses its key again."""

import itertools
from functools import partial
from unittest import mock

import pytest
from kazoo.security import OPEN_ACL_UNSAFE, make_acl
from support.faults import acquire_once, caught_up, die, due
from support.locking import as_json, zklock
from support.proxy import CREATE, CREATE_CONTAINER
from support.refused import on_real_server
from support.work import acquire_until
from support.zoo import ROOM, eventually, guid_of

from django_zklock import zk_lock, zk_semaphore
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


def test_one_look_deletes_a_bounded_number_of_holds(zoo, monkeypatch):
    make_over(zoo, rest, *map(str, range(6)))
    monkeypatch.setattr("django_zklock.core.zk.session.LAST_REPLIES", ROOM)
    monkeypatch.setattr(operator_holds, "MOST_DELETED", 2)
    left = [len(zoo.contenders())]
    while left[-1]:
        snapshot(max_age=0)
        process.reset(2 * ROOM)
        left.append(len(zoo.contenders()))
    assert all(0 < before - after <= 2 for before, after in itertools.pairwise(left))


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


@on_real_server
def test_a_look_needs_no_right_to_delete(zoo):
    make_over(zoo, rest, *map(str, range(6)))
    left = [key for key in map(str, range(6)) if zoo.children(key)]  # a slow process has deleted its first ones
    closed = [f"{zoo.base}/{name}" for name in left]
    for path in closed:
        zoo.client.set_acls(path, [make_acl("world", "anyone", read=True, admin=True)])
    eventually(lambda: f"processes have ended: {len(left)}." in zklock("doctor"))
    assert all(snapshot(max_age=0).complete for _ in range(3))
    assert len(zoo.contenders()) == len(left) > 0
    for path in closed:
        zoo.client.set_acls(path, OPEN_ACL_UNSAFE)


def test_only_holds_that_are_over_are_deleted(zoo):
    rest("a/b", LONG)
    die()
    (hold,) = zoo.children("a/b")
    make_over(zoo, rest, "other")
    unreadable = zoo.client.create(f"{zoo.base}/live/_c_{guid_of(hold)}-lock-0000000000", b"?", makepath=True)
    eventually(lambda: snapshot(max_age=0) and not zoo.children("other"))
    assert zoo.children("a/b") == [hold]
    assert zoo.client.exists(unreadable)


@on_real_server
def test_a_hold_that_may_not_be_deleted_keeps_no_other_from_its_turn(zoo, monkeypatch):
    make_over(zoo, rest, *map(str, range(6)))
    monkeypatch.setattr(operator_holds, "MOST_DELETED", 1)
    closed = [f"{zoo.base}/{number}" for number in range(4)]
    for path in closed:
        zoo.client.set_acls(path, [make_acl("world", "anyone", read=True, admin=True)])
    eventually(lambda: snapshot(max_age=0) and len(zoo.contenders()) == 4, 30)
    for path in closed:
        zoo.client.set_acls(path, OPEN_ACL_UNSAFE)


@pytest.mark.parametrize(("compat", "create"), [(None, CREATE_CONTAINER), ("kazoo", CREATE)])
def test_a_caller_that_gives_up_leaves_no_directory(zoo, proxy, compat, create):
    """Servers keep a container that never had a child. kazoo's recipes create the directory only once."""
    zoo.client.ensure_path(f"{zoo.base}/never")  # so that one request is enough, which `caught_up` waits for
    proxy.delay_op(create, 60)
    assert acquire_until(lambda: proxy.counts[create], zk_lock("never/used", compat=compat)) is None
    due(0)
    proxy.heal()
    caught_up()
    assert bool(zoo.client.exists(f"{zoo.base}/never/used")) is (compat is not None)


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
