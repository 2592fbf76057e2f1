"""The ids of tasks, as the queue of a lock shows them."""

from __future__ import annotations

from django_zklock.contrib.celery.messages import short_id


def test_long_ids_that_begin_and_end_alike_stay_different() -> None:
    """Otherwise a task would be taken for a copy of another one."""
    ids = {short_id("x" * 40 + str(number) + "x" * 40) for number in range(2)}
    assert len(ids) == 2
    assert all(len(shown) <= 64 for shown in ids)
    assert short_id("x" * 64) == "x" * 64
