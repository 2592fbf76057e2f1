"""The rule of `django_zklock.testing.order`: which orders of locks can lead to a deadlock, and what is said of them."""

import pytest

from django_zklock.testing.order import Edge, Edges, advice


def edge(outer, inner, lines, is_sorted=False, *, gates=()):
    """Return the edge of two templates; the lines are one text, the innermost first."""
    return Edge(outer, inner, lines.split(", "), list(gates), is_sorted)


def told(*edges):
    """Return what is said of these edges."""
    seen = Edges()
    for pair in edges:
        seen.add(pair if isinstance(pair, Edge) else edge(*pair))
    return [advice(circle) for circle in seen.circles()]


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


def test_a_function_that_acquires_all_locks_is_told_with_the_caller_that_differs():
    (text,) = told(
        ("a", "b", "locking.py:7, locking.py:9, views.py:3, urls.py:1"),
        ("b", "a", "locking.py:7, locking.py:9, tasks.py:9, urls.py:1"),
    )
    assert "locking.py:7 (called at views.py:3) does, locking.py:7 (called at tasks.py:9) does not." in text


def test_of_three_places_with_one_line_each_has_its_caller():
    (text,) = told(("a", "b", "x:1, y:2"), ("b", "c", "x:1, y:2"), ("c", "a", "x:1, z:3"))
    assert "Always lock 'a' before 'b' before 'c': x:1 (called at y:2) does, x:1 (called at z:3) does not." in text


def test_a_line_with_both_orders_is_not_told_twice():
    (text,) = told(("a", "b", "x:1, y:2"), ("b", "a", "x:1, y:2"))
    assert "Always lock 'a' before 'b': x:1 has both orders." in text


def test_after_many_names_two_orders_are_still_told():
    names = [(f"basket/{row}", f"mail/{row}", "x:1") for row in range(2000)]
    assert len(told(*names, ("a", "b", "x:2"), ("b", "a", "x:3"))) == 1


# --- gates --------------------------------------------------------------------------------------------------------

GATED = edge("a", "b", "x:1", gates=["gate"])
ONE_GATE = [
    [GATED, edge("b", "a", "x:2", gates=["gate"])],
    [GATED, edge("b", "a", "x:2", gates=["gate", "another"])],
    [edge("a", "a", "x:1", gates=["gate"])],
    [GATED, edge("b", "c", "x:2"), edge("c", "a", "x:3", gates=["gate"])],
]


@pytest.mark.parametrize("edges", ONE_GATE, ids=["two orders", "one of two gates", "one template", "three locks"])
def test_orders_under_one_gate_are_not_told(edges):
    assert not told(*edges)


TWO_WAYS = [
    [GATED, edge("b", "a", "x:2")],
    [GATED, edge("b", "a", "x:2", gates=["another"])],
    [GATED, edge("b", "a", "x:2", gates=["gate"]), edge("b", "a", "x:2")],
    [GATED, edge("b", "a", "x:2", gates=["gate"]), edge("a", "b", "x:1", gates=["another"])],
    [edge("a", "gate", "x:1"), edge("gate", "a", "x:2")],
]


@pytest.mark.parametrize(
    "edges", TWO_WAYS, ids=["one order outside", "two gates", "once outside", "once by another gate", "the gate itself"]
)
def test_orders_that_no_gate_keeps_apart_are_told(edges):
    assert len(told(*edges)) == 1


def test_two_orders_under_a_gate_do_not_hide_a_longer_circle():
    ways = [GATED, edge("b", "a", "x:2", gates=["gate"]), edge("b", "c", "x:3"), edge("c", "a", "x:4")]
    (text,) = told(*ways)
    assert "Always lock 'a' before 'b' before 'c'" in text
