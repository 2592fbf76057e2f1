"""The rule of `django_zklock.testing.order`: which orders of locks can lead to a deadlock, and what is said of them."""

import pytest

from django_zklock.testing.order import Edge, advice, circles


def told(*edges):
    """Return what is said of these edges: an outer and an inner template, a place, and more options."""
    return [advice(circle) for circle in circles([edge if isinstance(edge, Edge) else Edge(*edge) for edge in edges])]


def test_two_orders_are_told_with_both_places_and_the_cure():
    (text,) = told(("orders/{order}", "stock/{sku}", "views.py:3"), ("stock/{sku}", "orders/{order}", "tasks.py:9"))
    assert "Always lock 'orders/{order}' before 'stock/{sku}': views.py:3 does, tasks.py:9 does not." in text
    assert "zk_locks(...)" in text


def test_a_circle_of_three_is_told():
    (text,) = told(("a", "b", "x:1"), ("b", "c", "x:2"), ("c", "a", "x:3"))
    assert "Always lock 'a' before 'b' before 'c': x:1 and x:2 do, x:3 does not." in text


def test_a_circle_is_told_once():
    assert len(told(("a", "b", "x:1"), ("b", "a", "x:2"), ("b", "a", "x:3"), ("a", "b", "x:4"))) == 1


@pytest.mark.parametrize(
    "edges",
    [
        [("a", "b", "x:1"), ("b", "c", "x:2"), ("a", "c", "x:3")],
        [("a/{row}", "b", "x:1"), ("b", "a/{row}/c", "x:2")],
        [("{tenant}/a", "m/{row}", "x:1", True), ("m/{row}", "{tenant}/a", "x:2", True)],
        [("account/{a}", "account/{b}", "x:1", True)],
    ],
    ids=["one order", "other templates", "both acquired together", "two keys acquired together"],
)
def test_an_order_without_a_deadlock_is_not_told(edges):
    assert not told(*edges)


def test_a_single_lock_inside_another_can_meet_those_that_are_acquired_together():
    together = [("{tenant}/a", "m/{row}", "x:1", True), ("m/{row}", "{tenant}/a", "x:2", True)]
    assert len(told(*together, ("m/{row}", "{tenant}/a", "x:3"))) == 1


def test_two_locks_of_one_template_are_told():
    (text,) = told(("stock/{sku}", "stock/{sku}", "x:1"))
    assert "A lock of 'stock/{sku}' is acquired inside another one of 'stock/{sku}', at x:1." in text


def test_the_names_of_fields_do_not_matter():
    (text,) = told(("orders/{order}", "stock/{sku}", "x:1"), ("stock/{pk}", "orders/{pk}", "x:2"))
    assert "Always lock 'orders/{order}' before 'stock/{sku}'" in text
    (text,) = told(("account/{source}", "account/{target}", "x:1"))
    assert "A lock of 'account/{target}' is acquired inside another one of 'account/{source}'" in text


def test_a_function_that_acquires_all_locks_is_told_with_its_callers():
    first = Edge("a", "b", "locking.py:7", callers=("views.py:3", "urls.py:1"))
    last = Edge("b", "a", "locking.py:7", callers=("tasks.py:9", "urls.py:1"))
    (text,) = told(first, last)
    assert "locking.py:7 (called at views.py:3) does, locking.py:7 (called at tasks.py:9) does not." in text
