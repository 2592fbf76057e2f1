"""An assertion about what a page or an output shows."""

from __future__ import annotations

from collections.abc import Container, Iterable


def assert_shows(page: Container[str], *texts: str, hides: Iterable[str] = ()) -> None:
    """Fail unless all of these texts are there, and none of those that it hides."""
    assert [text for text in texts if text not in page] == [], page
    assert [text for text in hides if text in page] == [], page
