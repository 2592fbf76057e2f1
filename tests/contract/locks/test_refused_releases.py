"""ZooKeeper refuses to delete the znode of work that has ended: others wait behind it, and everybody can see why."""

import pytest
from kazoo.security import OPEN_ACL_UNSAFE, make_acl
from support.faults import BackgroundCall
from support.refused import no_deletes, on_real_server
from support.signalled import signalled
from support.work import acquired, assert_refused
from support.zoo import eventually

from django_zklock import inspection, zk_lock
from django_zklock.exceptions import LockTimeout

pytestmark = on_real_server

KEY = "stock/berlin"
READ_ONLY = make_acl("world", "anyone", read=True, admin=True)


@pytest.fixture
def sent():
    with signalled("lock_release_refused", "lock_released") as signals:
        yield signals


def look():
    lock = inspection.look_at(KEY)
    assert lock is not None
    return lock


def undeleted():
    eventually(lambda: bool(look().undeleted))
    (contender,) = look().undeleted
    return contender


def test_the_znode_of_a_refused_release_names_the_missing_right(zoo):
    with no_deletes(zoo, KEY):
        with zk_lock(KEY) as hold:
            assert not look().undeleted
        contender = undeleted()
        assert (contender.token, contender.holds) == (hold.token, True)
        assert f'the right "delete" in the ACL of {zoo.base}/{KEY})' in contender.refused


def test_a_refused_release_is_told_instead_of_a_release(zoo, sent):
    with no_deletes(zoo, KEY):
        with zk_lock(KEY):
            pass
        eventually(lambda: bool(sent))
    with zk_lock("another"):
        pass
    eventually(lambda: len(sent) == 2)
    (refused, kwargs), (released, other) = sent
    assert (refused, kwargs["lock"]) == ("lock_release_refused", KEY)
    assert "NoAuthError" in kwargs["reason"]
    assert (released, other["lock"]) == ("lock_released", "another"), "signals are sent in the order of the events"


def test_a_caller_that_has_given_up_and_stays_in_the_queue_is_told(zoo, sent):
    """It blocks the queue as soon as the holder is gone."""
    hold = acquired(zk_lock(KEY))
    with no_deletes(zoo, KEY):
        BackgroundCall(lambda: assert_refused(zk_lock(KEY, timeout=0.3), LockTimeout)).result()
        assert not undeleted().holds
        assert [name for name, _kwargs in sent] == ["lock_release_refused"]
        hold.release()
        eventually(lambda: len(look().undeleted) == 2)


def test_a_refused_release_goes_on_when_the_right_is_there(zoo):
    with no_deletes(zoo, KEY):
        with zk_lock(KEY):
            pass
        undeleted()
        waiter = BackgroundCall(lambda: acquired(zk_lock(KEY, timeout=30)))
        eventually(lambda: look().waiting == 1)
        zoo.client.set_acls(f"{zoo.base}/{KEY}", OPEN_ACL_UNSAFE)
        waiter.result(40).release()


def test_a_znode_that_cannot_say_that_it_is_refused_is_in_the_log(zoo, caplog):
    with no_deletes(zoo, KEY):
        with zk_lock(KEY) as hold:
            zoo.client.set_acls(hold.path, [READ_ONLY])

        eventually(lambda: f"the znode {hold.path} cannot say that its delete is refused" in caplog.text)
        assert not look().undeleted
