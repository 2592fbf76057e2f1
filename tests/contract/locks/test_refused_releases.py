"""ZooKeeper refuses to delete the znode of work that has ended: others wait behind it, and a signal says why."""

import pytest
from kazoo.security import OPEN_ACL_UNSAFE
from support.faults import BackgroundCall
from support.refused import no_deletes, on_real_server
from support.signalled import signalled
from support.work import acquired, assert_refused
from support.zoo import eventually

from django_zklock import zk_lock
from django_zklock.exceptions import LockTimeout
from django_zklock.inspection import look_at

pytestmark = on_real_server

KEY = "stock/berlin"


@pytest.fixture
def sent():
    with signalled("lock_release_refused", "lock_released") as signals:
        yield signals


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
    assert f'the right "delete" in the ACL of {zoo.base}/{KEY})' in kwargs["reason"]
    assert (released, other["lock"]) == ("lock_released", "another"), "signals are sent in the order of the events"


def test_a_caller_that_has_given_up_and_stays_in_the_queue_is_told(zoo, sent):
    """It blocks the queue as soon as the holder is gone."""
    hold = acquired(zk_lock(KEY))
    with no_deletes(zoo, KEY):
        BackgroundCall(lambda: assert_refused(zk_lock(KEY, timeout=0.3), LockTimeout)).result()
        eventually(lambda: [name for name, _kwargs in sent] == ["lock_release_refused"])
        hold.release()
        eventually(lambda: [name for name, _kwargs in sent] == ["lock_release_refused"] * 2)


def test_a_refused_release_goes_on_when_the_right_is_there(zoo, sent):
    with no_deletes(zoo, KEY):
        with zk_lock(KEY):
            pass
        eventually(lambda: bool(sent))
        waiter = BackgroundCall(lambda: acquired(zk_lock(KEY, timeout=30)))
        eventually(lambda: look_at(KEY).waiting == 1)
        zoo.client.set_acls(f"{zoo.base}/{KEY}", OPEN_ACL_UNSAFE)
        waiter.result(40).release()
