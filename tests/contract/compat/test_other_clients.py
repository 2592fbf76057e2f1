"""Other clients, unknown znodes, leftovers and hostile input in a lock's directory or name harm no lock."""

import contextlib
import functools
import logging
import uuid

import pytest
from kazoo.exceptions import NoNodeError
from support.faults import BackgroundCall, acquire_once, client, session
from support.refused import on_real_server
from support.work import assert_refused, seen
from support.zoo import eventually

from django_zklock import Lock, current_hold, zk_lock
from django_zklock.core.protocol.registry import Registry
from django_zklock.core.queue import nodes
from django_zklock.core.zk import process
from django_zklock.exceptions import InvalidLockName, LockBusy, UnreadableQueue
from django_zklock.inspection import snapshot


@pytest.mark.parametrize("value", ["\ud83d", "..", None], ids=["lone surrogate", "dots", "none"])
def test_a_hostile_name_is_refused_before_anything_is_sent(zoo, value):
    with zk_lock("other") as other:
        before = session().session_id
        assert_refused(zk_lock("key/{value}", fields={"value": value}), InvalidLockName)
        lock = zk_lock("key/{value}", fields={"value": value})
        for use in (functools.partial(lock.acquire, timeout=1), lock.locked, lambda: lock.key):
            with pytest.raises(InvalidLockName):
                use()
        acquire_once("third", timeout=20)
        other.check()
        assert session().session_id == before


@pytest.mark.parametrize("blocking", [True, False])
def test_a_contender_of_an_unknown_kind_closes_the_lock(zoo, blocking):
    """Nobody can tell whose turn it is, so nobody is granted anything; the error names it, and nothing is left."""
    zoo.client.create(f"{zoo.base}/a/foo-0000000001", makepath=True)
    with pytest.raises(UnreadableQueue, match="foo-0000000001"):
        zk_lock("a").acquire(blocking=blocking)
    with pytest.raises(UnreadableQueue, match="foo-0000000001"):
        zk_lock("a").locked()
    eventually(lambda: zoo.children("a") == ["foo-0000000001"])
    zoo.client.delete(f"{zoo.base}/a/foo-0000000001")
    acquire_once("a", timeout=20)


def test_a_waiter_gets_the_error_about_an_unknown_contender(zoo):
    with zoo.hold_elsewhere("a"), zoo.hold_elsewhere("a"):
        waiter = BackgroundCall(lambda: acquire_once("a", timeout=10))
        zoo.wait_contenders("a", 3)
        zoo.client.create(f"{zoo.base}/a/foo-0000000001", makepath=True)
    with pytest.raises(UnreadableQueue, match="foo-0000000001"):
        waiter.result()
    eventually(lambda: zoo.children("a") == ["foo-0000000001"])
    zoo.client.delete(f"{zoo.base}/a/foo-0000000001")


def test_a_key_that_ends_in_ten_digits_is_shown_as_it_was_written(zoo):
    """In errors, holds and lists, though not in its path."""
    key = "order/1795428818"
    lock = zk_lock("order/{stamp}", fields={"stamp": 1795428818})
    with lock as hold, pytest.raises(LockBusy, match=f"'{key}' is held") as caught:
        assert lock.key == hold.key == key
        assert hold.path.rpartition("/")[0] == f"{zoo.base}/order/179542881%38"
        assert [info.key for info in snapshot(max_age=0, reply_timeout=30).locks] == [key]
        BackgroundCall(Lock.of_key(key, timeout=0).__enter__).result(30)
    assert caught.value.lock == key


@pytest.mark.parametrize("name", ["order/1795428818", "order/179542881%38"], ids=["key", "path"])
def test_a_key_that_ends_in_ten_digits_and_its_path_name_one_lock(zoo, name):
    """An older list may have shown the path."""
    key = "order/1795428818"
    with zk_lock("order/{stamp}", fields={"stamp": 1795428818}) as hold:
        info = seen(name)
        assert (info.key, len(info.holders)) == (key, 1)
        assert Lock.of_key(name).key == key
        assert Lock.of_key(name).owned()
        assert current_hold(key) == hold


def test_the_containers_of_a_used_key_are_reaped(zoo):
    with zk_lock("gone/and/deep"):
        assert zoo.client.exists(f"{zoo.base}/gone/and/deep")
    eventually(lambda: not zoo.client.exists(f"{zoo.base}/gone"), 8, "the directories of a lock stay")
    acquire_once("gone/and/deep", timeout=20)


def test_a_key_may_be_reaped_at_any_time(zoo):
    lock = zk_lock("a")
    for _ in range(30):
        assert lock.acquire(timeout=20)
        lock.release()
        with contextlib.suppress(NoNodeError):
            zoo.client.delete(f"{zoo.base}/a")


def test_the_audit_deletes_unknown_znodes_of_the_session(zoo, caplog):
    """Nobody would ever release it, and the session may live for weeks; what is known, or another's, stays."""
    with zk_lock("a") as hold, zoo.hold_elsewhere("b") as other:
        name = f"{zoo.base}/c/{nodes.prefix(str(uuid.uuid4()))}"
        ghost = client().create_async(name, b"", ephemeral=True, sequence=True, makepath=True).get(timeout=5)
        assert zoo.client.exists(ghost)
        kept = client().create_async(f"{zoo.base}/b/of-a-project-0000000001", b"", ephemeral=True).get(timeout=5)
        with caplog.at_level(logging.ERROR, "django_zklock"):
            registry = process.current().attached(Registry)
            process.current().post(lambda: [registry.audit() for _ in range(2)])
            eventually(lambda: not zoo.client.exists(ghost), 5)
        assert caplog.text.count(ghost) == 1
        hold.check()
        assert zoo.client.exists(other)
        assert zoo.client.exists(hold.path)
        zoo.client.delete(kept)


PASSWORD = "open-sesame"
DIGEST = {"AUTH": [("digest", f"alice:{PASSWORD}")], "ACL": "creator"}


@on_real_server
def test_credentials_guard_the_nodes(zoo):
    zoo.use_own_client().add_auth("digest", f"alice:{PASSWORD}")
    with zoo.configured(**DIGEST):
        with zk_lock("secret") as hold:
            (acl,), _ = zoo.client.get_acls(hold.path)
            assert zoo.client.get_acls(f"{zoo.base}/secret")[0] == [acl]
        assert acl.id.scheme == "digest"
        assert acl.id.id.startswith("alice:")
        assert zk_lock("secret").locked() is False
