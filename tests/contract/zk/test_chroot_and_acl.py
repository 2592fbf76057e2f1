"""The chroot and ROOT stay, with the ACL that somebody gave them. A wrong `ACL` leaves nothing behind."""

import base64
import hashlib
from collections.abc import Callable

import pytest
from kazoo.exceptions import QuotaExceededError
from kazoo.security import OPEN_ACL_UNSAFE, make_acl, make_digest_acl
from support.faults import acquire_once, proxied
from support.proxy import MULTI, with_error
from support.refused import on_real_server
from support.reserving import queued
from support.zoo import eventually

from django_zklock import zk_semaphore
from django_zklock.contrib.celery.unique import reservations
from django_zklock.contrib.celery.unique.reservations import lock_key
from django_zklock.exceptions import ZooKeeperUnavailable
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


WRONG = {
    "password": [("digest", digest("Secret"), "cdrwa")],
    "no read": [("digest", digest(), "cdwa")],
    "no create": [("digest", digest(), "drwa")],
    "no delete": [("digest", digest(), "crwa")],
    "others": [("digest", digest("other"), "cdrwa"), ("world", "anyone", "r")],
    "address": [("ip", "192.0.2.1", "cdrwa")],
    "no such id": [("digest", "shop", "cdrwa")],
}


@pytest.mark.parametrize(
    ("acl", "use"),
    [
        *((acl, use_lock) for acl in WRONG),
        *(("password", use) for use in (use_operator_hold, use_limit, use_reservation)),
    ],
)
@pytest.mark.parametrize("existing", ["", "/zklock"], ids=["no chroot", "root exists"])
def test_a_wrong_acl_leaves_nothing(zoo, admin, acl, use, existing):
    if existing:
        admin.ensure_path(f"{zoo.chroot}{existing}")
    with zoo.configured(AUTH="shop:secret", ACL=WRONG[acl]):
        message = refused(use)
    assert 'ZKLOCK["ACL"]' in message
    if acl != "no such id":
        assert message.startswith(f"{zoo.base}/" if existing else f"{zoo.chroot} was not created")
    assert zoo.names(f"{zoo.chroot}{existing}") == []
    assert bool(admin.exists(zoo.chroot)) is bool(existing)
    with zoo.configured(AUTH="shop:secret"):
        use()


@pytest.mark.parametrize("use", [use_operator_hold, use_limit, use_reservation])
@pytest.mark.parametrize("acl", ["password", "no read"])
def test_a_wrong_acl_leaves_no_record_in_a_directory(zoo, admin, acl, use):
    """A record that stays, and that nobody may read, would block its key."""
    admin.ensure_path(f"{zoo.base}/a")
    admin.ensure_path(reservation := f"{zoo.base}/{lock_key('a')}")
    with zoo.configured(AUTH="shop:secret", ACL=WRONG[acl]):
        message = refused(use)
    assert zoo.base in message or use is use_operator_hold, "the log names it then"
    eventually(lambda: zoo.names(f"{zoo.base}/a") == zoo.names(reservation) == [])
    use()


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


def test_a_trial_that_a_quota_ends_is_not_blamed_on_the_acl(zoo, admin):
    with proxied(zoo, 20, AUTH="shop:secret", ACL=RIGHT["all"]) as proxy:
        proxy.alter_reply(MULTI, with_error(0, 0, QuotaExceededError.code), carried_out=False)
        use_lock()


def test_the_znode_above_needs_to_allow_creates_only(zoo, admin):
    above = [make_digest_acl("admin", "secret", all=True), make_acl("world", "anyone", create=True)]
    admin.create(zoo.chroot, acl=above)
    with zoo.configured(AUTH="shop:secret", ACL=RIGHT["all"]):
        use_lock()
        use_lock("b/c")
    with zoo.configured(AUTH="shop:secret", ACL=WRONG["password"], ROOT="/other"):
        refused()
    assert admin.get_children(zoo.chroot) == ["zklock"]
    admin.set_acls(zoo.chroot, OPEN_ACL_UNSAFE)
