"""The judge of claims sees what must not be."""

from __future__ import annotations

import pytest
from support.chaos.lease_claims import Claim, violations


def claim(since: float, until: float, token: int, key: str = "k") -> Claim:
    return Claim(key, f"client-{token}", 0, token, since, until)


def test_claims_one_after_another_are_fine() -> None:
    assert violations([claim(2.0, 3.0, 7), claim(0.0, 2.0, 5), claim(0.0, 9.0, 1, key="other")]) == []


@pytest.mark.parametrize(
    ("claims", "match"),
    [
        ([claim(0.0, 2.0, 5), claim(1.9, 3.0, 7)], "0.100 s before the end"),
        ([claim(0.0, 9.0, 5), claim(9.0, 9.1, 6), claim(8.0, 8.5, 7)], "before the end"),
        ([claim(0.0, 2.0, 5), claim(2.0, 3.0, 5)], "not above"),
        ([claim(0.0, 2.0, 5), claim(2.0, 3.0, 4)], "not above"),
    ],
)
def test_overlapping_claims_are_violations(claims: list[Claim], match: str) -> None:
    assert any(match in violation for violation in violations(claims))
