"""`reference/log-messages.md` is made from the code, and says what to do at messages that are logged."""

import functools
import re
import runpy

from support.docs import DOCS, text_of

from django_zklock.core.zk import troubles

MESSAGES = runpy.run_path(str(DOCS / "from_code.py"))
LOGGED = sorted(set(MESSAGES["logged"]()))
PAGE = text_of("reference/log-messages.md")
VALUE = re.compile(r"\b[A-Z]{2,}\b|\bN\b")
"""A word of the page that is a value of the message."""


def explained():
    """Yield the loggers of a heading, and a text below it."""
    remedies = PAGE.partition("## What to do\n")[2].partition("\n## ")[0]
    for section in re.split(r"^### ", remedies, flags=re.MULTILINE)[1:]:
        heading, _, rows = section.partition("\n")
        names = [re.sub(r"^\.", "django_zklock.", name) for name in re.findall(r"`([\w.]+)`", heading)]
        for row in re.findall(r"^\* (`.*?`):\s", rows, re.MULTILINE | re.DOTALL):
            yield from ((names, text) for text in re.findall(r"`([^`]+)`", row))


@functools.cache
def pattern(text, value):
    return re.compile(".*".join(map(re.escape, value.split(" ".join(text.split())))))


def is_logged(names, shown):
    """Return whether a text of the page is a message. It may end in an ellipsis."""
    texts = [text for logger, _, text in LOGGED if logger in names]
    if shown.endswith("..."):
        return any(pattern(shown.removesuffix("...").rstrip(), VALUE).match(text) for text in texts)
    return any(pattern(text, MESSAGES["FORMAT"]).fullmatch(" ".join(shown.split())) for text in texts)


def test_the_page_explains_messages_that_are_logged_and_no_other():
    rows = list(explained())
    assert [text for names, text in rows if not is_logged(names, text)] == []
    assert len(rows) > 30
    assert len(LOGGED) > 75
    assert "<!-- from the code: messages -->\n" in PAGE


def test_every_reason_of_a_loss_is_on_the_page():
    reasons = PAGE.partition("## Reasons of a loss")[2].partition("\n## ")[0]
    assert set(troubles.ALL) - set(re.findall(r"`([^`]+)`", reasons)) == set()
