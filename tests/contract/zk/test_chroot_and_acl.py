"""The chroot and ROOT stay, with the ACL that somebody gave them. The error of a wrong `ACL` names its znode."""

import base64
import hashlib
from collections.abc import Callable

import pytest
from kazoo.security import OPEN_ACL_UNSAFE, make_acl, make_digest_acl
from support.faults import acquire_once
from support.refused import on_real_server
from support.reserving import queued
from support.zoo import eventually

from django_zklock import zk_semaphore
from django_zklock.contrib.celery.unique import reservations
from django_zklock.exceptions import ZooKeeperUnavailable
from django_zklock.inspection import snapshot
from django_zklock.operations import clear_limit, end_hold, hold_lock, set_limit

pytestmark = on_real_server

Use = Callable[[], object]
OPERATOR = {"reason": "a test", "by": "ann"}


def digest(password="secret"):
    """Return the id of the user `shop` in an ACL."""
    return "shop:" + base64.b64encode(hashlib.sha1(f"shop:{password}".encode()).digest()).decode()


def use_lock(key="a"):
    acquire_once(key)


def use_permit():
    acquire_once(zk_semaphore("a", 2))


def use_operator_hold():
    hold = hold_lock("a", seconds=60, **OPERATOR)
    end_hold("a", token=hold.token, **OPERATOR)


def use_limit():
    set_limit("a", 3, **OPERATOR)
    clear_limit("a", **OPERATOR)


def use_reservation():
    queued("a", "one")
    problem = reservations.end("a", "one")
    if problem is not None:
        raise problem


FIRST = [use_lock, use_permit, use_operator_hold, use_limit, use_reservation]


@pytest.fixture
def admin(zoo):
    """The client of the test, with an account of its own and with that of the project."""
    client = zoo.use_own_client()
    client.add_auth("digest", "admin:secret")
    client.add_auth("digest", "shop:secret")
    return client


def refused(use=use_lock):
    with pytest.raises(ZooKeeperUnavailable) as caught:
        use()
    return str(caught.value)


def idle(zoo, base):
    """Wait until the server has deleted all empty containers at a base, and the base if it were one."""
    eventually(lambda: zoo.names(base) == [], 8, "the directories of keys stay")
    with zoo.configured(ROOT="/of/another"):
        use_lock()
    eventually(lambda: zoo.names(f"{zoo.chroot}/of/another") == [], 8)


def test_the_chroot_and_root_stay(zoo):
    bases = []
    for use in FIRST:
        with zoo.configured(ROOT=f"/locks/of/{use.__name__}"):
            use()
            snapshot(max_age=0)  # it deletes the marker of a limit that was cleared
        bases.append(f"{zoo.chroot}/locks/of/{use.__name__}")
    eventually(lambda: not any(map(zoo.names, bases)), 8)
    idle(zoo, bases[-1])
    assert all(map(zoo.client.exists, bases))


def test_an_acl_that_was_set_by_hand_stays(zoo, admin):
    use_lock()
    by_hand = [make_digest_acl("shop", "secret", all=True), make_acl("world", "anyone", read=True, create=True)]
    for path in (zoo.chroot, zoo.base):
        admin.set_acls(path, by_hand)
    with zoo.configured(AUTH="shop:secret"):
        idle(zoo, zoo.base)
        use_lock("b/c")
    for path in (zoo.chroot, zoo.base):
        assert admin.get_acls(path)[0] == by_hand


def test_locks_go_on_if_the_znode_above_is_closed_later(zoo, admin):
    admin.create(zoo.chroot)
    with zoo.configured(ROOT="/above/locks"):
        use_lock("a/b")
        admin.set_acls(f"{zoo.chroot}/above", [make_digest_acl("admin", "secret", all=True)])
        idle(zoo, f"{zoo.chroot}/above/locks")
        for use in FIRST:
            use()


def test_a_closed_znode_above_is_named(zoo, admin):
    admin.create(zoo.chroot, acl=[make_digest_acl("admin", "secret", all=True)])
    assert f"the ACL of {zoo.chroot})" in refused()


@pytest.mark.parametrize(("path", "key"), [("/zklock", "b"), ("/zklock/a", "a"), ("/zklock/a", "a/b")])
def test_the_error_names_the_znode_that_belongs_to_others(zoo, admin, path, key):
    """The ACL of the parent decides about a create, so the error names the parent."""
    admin.ensure_path(f"{zoo.base}/a")
    admin.set_acls(f"{zoo.chroot}{path}", [make_digest_acl("admin", "secret", all=True)])
    assert f"the ACL of {zoo.chroot}{path})" in refused(lambda: use_lock(key))


@pytest.mark.parametrize("use", FIRST)
@pytest.mark.parametrize(
    "acl", [("digest", digest("Secret"), "cdrwa"), ("ip", "192.0.2.1", "cdrwa")], ids=["password", "address"]
)
def test_the_error_of_a_wrong_acl_names_the_znode_that_it_closes(zoo, admin, acl, use):
    with zoo.configured(AUTH="shop:secret", ACL=[acl]):
        assert f"the ACL of {zoo.chroot})" in refused(use)


def test_an_acl_that_zookeeper_does_not_know_creates_nothing(zoo, admin):
    with zoo.configured(AUTH="shop:secret", ACL=[("digest", "shop", "cdrwa")]):
        assert 'does not know a scheme or an id in ZKLOCK["ACL"]; correct it' in refused()
    assert not admin.exists(zoo.chroot)


RIGHT = {
    "all": [("digest", digest(), "cdrwa")],
    "no more than locks need": [("digest", digest(), "cdr")],
    "of two entries": [("world", "anyone", "r"), ("digest", digest(), "cd")],
    "address": [("ip", "127.0.0.0/8", "cdrw")],
}


@pytest.mark.parametrize("acl", RIGHT.values(), ids=RIGHT.keys())
def test_a_right_list_is_used_as_it_is(zoo, admin, acl):
    with zoo.configured(AUTH="shop:secret", ACL=acl):
        use_lock("a/b")
    for path in (zoo.chroot, zoo.base):
        assert [entry.id.scheme for entry in admin.get_acls(path)[0]] == [scheme for scheme, _, _ in acl]


def test_the_znode_above_needs_to_allow_creates_only(zoo, admin):
    above = [make_digest_acl("admin", "secret", all=True), make_acl("world", "anyone", create=True)]
    admin.create(zoo.chroot, acl=above)
    with zoo.configured(AUTH="shop:secret", ACL=RIGHT["all"]):
        use_lock()
        use_lock("b/c")
    admin.set_acls(zoo.chroot, OPEN_ACL_UNSAFE)
