"""`explanation/lease-and-abort.md` has the numbers of the lease, as the code computes them. No other page has them."""

from __future__ import annotations

import re
from dataclasses import fields

import pytest
from support.docs import DOCS, text_of

from django_zklock import conf
from django_zklock.core.zk.client import STALL_SHARE
from django_zklock.core.zk.lease import LEASE_SHARE, RELAY_SHARE
from django_zklock.core.zk.session import BEAT_SHARE

PAGE = text_of("explanation/lease-and-abort.md")
TWO_TICKS = 4.0
SURE_SHARE = 1 - 1 / 3 - RELAY_SHARE
"""The share of the leader's timer that remains after a write: see `Lease`."""
ROWS = re.findall(r"^\| (\d+) +\|" + r" ([\d.]+) +\|" * 4, PAGE, flags=re.MULTILINE)
NUMBERS = re.compile(r"0\.4 (?:session )?timeouts?|0\.4 \*?T|0\.417|\b4\.[67] s\b|\b8\.3\b")


def shown(seconds: float) -> str:
    """Return seconds as the page shows them."""
    return f"{seconds:.1f}".removesuffix(".0")


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_the_table_of_session_timeouts_is_computed_by_the_code(row: tuple[str, ...]) -> None:
    """Replaced within, lease, the pause that is always survived, and the interval of the heartbeat."""
    timeout, *times = map(float, row)
    computed = (timeout + TWO_TICKS, LEASE_SHARE * timeout, (LEASE_SHARE - BEAT_SHARE) * timeout, BEAT_SHARE * timeout)
    assert list(map(shown, times)) == list(map(shown, computed))


def test_the_worst_case_is_that_of_the_default_timeout() -> None:
    """Each second of the table."""
    (timeout,) = (field.default for field in fields(conf.Config) if field.name == "session_timeout")
    assert isinstance(timeout, float)
    seconds = re.findall(
        r"^\| ([\d.]+)(?: to ([\d.]+))? (?:\(|\|)", PAGE.partition("second by second")[2], re.MULTILINE
    )
    assert str(timeout) in {f"{row[0]}.0" for row in ROWS}
    assert seconds == [
        ("0", ""),
        (shown(BEAT_SHARE * timeout), ""),
        (shown((BEAT_SHARE + STALL_SHARE) * timeout), ""),
        (shown(LEASE_SHARE * timeout), ""),
        (shown(SURE_SHARE * timeout), ""),
        (shown(timeout), shown(timeout + TWO_TICKS)),
    ]
    assert f"earlier than {SURE_SHARE:.3f} timeouts after a write" in " ".join(PAGE.split())
    assert f"{LEASE_SHARE:g} session timeouts after the **sending**" in PAGE


def test_the_margin_of_the_metric_is_that_of_the_lease() -> None:
    """It is measured when the next heartbeat is due."""
    text = " ".join(text_of("reference/metrics.md").split())
    due = BEAT_SHARE / LEASE_SHARE
    assert f"normally {1 - due:.2f}, because a heartbeat is due after {due:.2f} of the lease" in text


def test_no_other_page_has_the_numbers() -> None:
    """They would differ one day."""
    pages = {str(page.relative_to(DOCS)): NUMBERS.findall(page.read_text()) for page in DOCS.rglob("*.md")}
    assert {name: numbers for name, numbers in pages.items() if numbers} == {
        "explanation/lease-and-abort.md": NUMBERS.findall(PAGE)
    }
