from __future__ import annotations

from support.zoo import Zoo

from django_zklock import zk_lock


def test_a_lock_is_taken_and_released(zoo: Zoo) -> None:
    """A lock has one contender while it is held and none after."""
    with zk_lock("a"):
        assert len(zoo.children("a")) == 1
    assert zoo.children("a") == []
