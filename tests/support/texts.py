"""An assertion about what a page or an output shows."""


def assert_shows(page, *texts, hides=()):
    """Fail unless all of these texts are there, and none of those that it hides."""
    assert [text for text in texts if text not in page] == [], page
    assert [text for text in hides if text in page] == [], page
