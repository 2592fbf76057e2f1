"""`explanation/lease-and-abort.md` has the numbers of the lease, as the code computes them. No other page has them."""

from __future__ import annotations

import re

import pytest
from support.docs import text_of

from django_zklock.core.zk.lease import LEASE_SHARE
from django_zklock.core.zk.session import BEAT_SHARE

PAGE = text_of("explanation/lease-and-abort.md")
TWO_TICKS = 4.0
ROWS = re.findall(r"^\| (\d+) +\|" + r" ([\d.]+) +\|" * 4, PAGE, flags=re.MULTILINE)


def shown(seconds: float) -> str:
    """Return seconds as the page shows them."""
    return f"{seconds:.1f}".removesuffix(".0")


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_the_table_of_session_timeouts_is_computed_by_the_code(row: tuple[str, ...]) -> None:
    """Replaced within, lease, the pause that is always survived, and the interval of the heartbeat."""
    timeout, *times = map(float, row)
    computed = (timeout + TWO_TICKS, LEASE_SHARE * timeout, (LEASE_SHARE - BEAT_SHARE) * timeout, BEAT_SHARE * timeout)
    assert list(map(shown, times)) == list(map(shown, computed))
