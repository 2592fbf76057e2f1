"""
The claims of clients of lock coordinators, and whether they exclude each other.

A claim is what one client may believe: it has the lock from the moment at which the answer came, until the end that it
was told, counted from the moment before it asked. All times are `time.monotonic()` of one machine.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(slots=True)
class Claim:
    """One lease, as its client sees it."""

    key: str
    client: str
    coordinator: int
    token: int
    since: float
    until: float


def violations(claims: Iterable[Claim]) -> list[str]:
    """Return what is wrong: two clients that had a lock at a time, and tokens that do not rise."""
    by_key: dict[str, list[Claim]] = defaultdict(list)
    for claim in claims:
        by_key[claim.key].append(claim)
    overlaps = []
    for key, claims_of_key in by_key.items():
        claims_of_key.sort(key=lambda claim: claim.since)
        longest = claims_of_key[0]
        for earlier, later in itertools.pairwise(claims_of_key):
            longest = max(longest, earlier, key=lambda claim: claim.until)
            if later.since < longest.until:
                over = longest.until - later.since
                overlaps.append(f"{key}: {later} was granted {over:.3f} s before the end of {longest}")
            if later.token <= earlier.token:
                overlaps.append(f"{key}: the token of {later} is not above that of {earlier}")
    return overlaps
