"""The dev server's watches: whom a change concerns, and in which order it is told."""

from __future__ import annotations

import pytest

from django_zklock.testing.server.codes import Event, Watch
from django_zklock.testing.server.watches import Watches


def heard(watches: Watches[str], event: Event, path: str) -> list[tuple[str, Event, str]]:
    return list(watches.fire(event, path))


def test_a_watch_fires_once() -> None:
    """No watch reports the second change."""
    watches: Watches[str] = Watches()
    watches.data.add("/a", "me", Watch.ONCE)
    assert heard(watches, Event.CHANGED, "/a") == [("me", Event.CHANGED, "/a")]
    assert heard(watches, Event.CHANGED, "/a") == []
    assert len(watches) == 0


def test_a_deletion_is_told_once_per_watcher_and_then_to_the_parent() -> None:
    """Who watches node and children hears of the end once; the parent's watchers hear that a child is gone."""
    watches: Watches[str] = Watches()
    watches.data.add("/a/b", "both", Watch.ONCE)
    watches.child.add("/a/b", "both", Watch.ONCE)
    watches.child.add("/a/b", "children", Watch.ONCE)
    watches.child.add("/a", "parent", Watch.ONCE)
    assert heard(watches, Event.DELETED, "/a/b") == [
        ("both", Event.DELETED, "/a/b"),
        ("children", Event.DELETED, "/a/b"),
        ("parent", Event.CHILD, "/a"),
    ]
    assert len(watches) == 0


def test_a_child_of_the_root_concerns_the_root() -> None:
    """Whose path is not the empty string that cutting off the name leaves."""
    watches: Watches[str] = Watches()
    watches.child.add("/", "me", Watch.ONCE)
    assert heard(watches, Event.CREATED, "/a") == [("me", Event.CHILD, "/")]


def test_a_persistent_watch_stays() -> None:
    """It hears of the node and of its children, again and again."""
    watches: Watches[str] = Watches()
    watches.add("/a", "me", Watch.PERSISTENT)
    for _ in range(2):
        assert heard(watches, Event.CREATED, "/a/x") == [("me", Event.CHILD, "/a")]
        assert heard(watches, Event.CHANGED, "/a") == [("me", Event.CHANGED, "/a")]
        assert heard(watches, Event.CHANGED, "/a/x") == []


def test_a_recursive_watch_sees_all_below_and_no_child_events() -> None:
    """Each node speaks for itself; a neighbour with the same beginning does not."""
    watches: Watches[str] = Watches()
    watches.add("/a", "me", Watch.RECURSIVE)
    for path in ("/a", "/a/x", "/a/x/y"):
        for event in (Event.CREATED, Event.CHANGED, Event.DELETED):
            assert heard(watches, event, path) == [("me", event, path)]
    assert heard(watches, Event.CREATED, "/ab") == []


def test_one_watch_a_path_and_the_last_decides() -> None:
    """A read with a watch makes a persistent one fire once, as in 3.8."""
    watches: Watches[str] = Watches()
    watches.add("/a", "me", Watch.RECURSIVE)
    watches.data.add("/a", "me", Watch.ONCE)
    assert len(heard(watches, Event.CHANGED, "/a")) == 1
    assert heard(watches, Event.CHANGED, "/a") == []


def test_who_is_gone_is_forgotten() -> None:
    """No watch is left behind by one who leaves, and the others keep theirs."""
    watches: Watches[str] = Watches()
    for path in ("/a", "/b", "/c"):
        watches.add(path, "gone", Watch.RECURSIVE)
        watches.child.add(path, "stays", Watch.ONCE)
    watches.forget("gone")
    assert len(watches) == 3
    assert heard(watches, Event.CREATED, "/a/x") == [("stays", Event.CHILD, "/a")]


def test_kinds_of_watches_have_numbers() -> None:
    """Those of the protocol and no others."""
    watches: Watches[str] = Watches()
    assert watches.tables(1) == (watches.child,)
    assert watches.tables(2) == (watches.data,)
    assert watches.tables(3) == (watches.data, watches.child)
    with pytest.raises(ValueError, match="no kind"):
        watches.tables(0)
