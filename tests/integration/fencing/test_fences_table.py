"""The table of fences: one row for each name, raised by compare-and-set."""

from __future__ import annotations

import pytest

from django_zklock.contrib.fences.models import Fence
from django_zklock.contrib.fences.rows import advance
from django_zklock.exceptions import StaleToken

pytestmark = pytest.mark.django_db


def tokens() -> dict[str, int]:
    return dict(Fence.objects.values_list("name", "token"))


def test_a_token_is_remembered_and_a_lower_one_refused() -> None:
    """The same token is accepted again. Names are independent."""
    advance("ledger", 5, "default")
    advance("ledger", 5, "default")
    advance("other", 1, "default")
    advance("ledger", 9, "default")
    with pytest.raises(StaleToken, match="'ledger' has seen a newer token than 8") as caught:
        advance("ledger", 8, "default")
    assert caught.value.lock == "ledger"
    assert tokens() == {"ledger": 9, "other": 1}


def test_a_name_may_be_as_long_as_a_key() -> None:
    """Two long names with the same beginning are two fences, with 255 characters each."""
    first, second = "k" * 999 + "1", "k" * 999 + "2"
    advance(first, 2, "default")
    advance(second, 1, "default")
    assert sorted(map(len, tokens())) == [255, 255]
    with pytest.raises(StaleToken):
        advance(first, 1, "default")
