"""The text of a value: the same on both sides of a message, whatever that makes of it."""

from __future__ import annotations

import datetime
import enum
import json
import types
import uuid
from typing import Any

import pytest
from django.utils.translation import gettext_lazy
from hypothesis import given
from hypothesis import strategies as st
from kombu.utils.json import dumps, loads

from django_zklock.exceptions import InvalidLockName
from django_zklock.queue.field_values import text_of
from django_zklock.queue.names import Template


class Size(str, enum.Enum):
    SMALL = "small"
    LARGE = "large"


class Level(int, enum.Enum):
    LOW = 1


class Meta:
    label_lower = "shop.order"


class Order:
    """A stand-in for a Django model."""

    _meta = Meta

    def __init__(self, pk: object) -> None:
        self.pk = pk


class Proxy(Order):
    _meta: Any = types.SimpleNamespace(label_lower="shop.paidorder", concrete_model=Order)


ZONES = st.none() | st.integers(-12, 12).map(lambda hours: datetime.timezone(datetime.timedelta(hours=hours)))
SCALARS = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    st.integers(-(2**63), 2**63),
    st.uuids(),
    st.decimals(allow_nan=False, places=2, min_value=-1000, max_value=1000),
    st.dates(),
    st.datetimes(timezones=ZONES),
    st.times(),
    st.sampled_from([*Size, *Level]),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner | st.none() | st.booleans(), max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.text("ab1", max_size=3) | st.integers(0, 2), inner, max_size=3),
    ),
    max_leaves=6,
)


def text(value: object) -> str | None:
    try:
        return text_of(value, "field")
    except InvalidLockName:
        return None


@given(VALUES)
def test_a_value_has_one_text_on_both_sides_of_a_message(value: object) -> None:
    """Through the JSON of Celery, which brings most types back."""
    before = text(value)
    if before is not None:
        assert text(loads(dumps(value))) == before


@given(VALUES)
def test_a_value_has_one_text_on_both_sides_of_plain_json(value: object) -> None:
    """Through a JSON that turns what it does not know into text."""
    before = text(value)
    if before is not None:
        plain = json.loads(
            json.dumps(
                value,
                default=lambda field_value: (
                    field_value.isoformat() if hasattr(field_value, "isoformat") else str(field_value)
                ),
            )
        )
        assert text(plain) == before


@given(st.lists(SCALARS, max_size=3), st.lists(SCALARS, max_size=3))
def test_different_lists_have_different_texts(first: list[object], second: list[object]) -> None:
    """Where one item ends and the next begins can be told, whatever the items hold."""
    if [text(item) for item in first] != [text(item) for item in second]:
        assert text(first) != text(second)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ((1, "b"), '["1","b"]'),
        ([], "[]"),
        ({2: [uuid.UUID(int=1)], "1": None}, '{"1":null,"2":["00000000-0000-0000-0000-000000000001"]}'),
        ([True, Size.LARGE, Level.LOW], '[true,"large","1"]'),
        (datetime.time(12, 30), "12:30:00"),
        (Order(7), "shop.order:7"),
        (Order("a b"), "shop.order:a b"),
        (Proxy(7), "shop.order:7"),
        ([Order(7)], '["shop.order:7"]'),
    ],
)
def test_texts_stay_as_they_are(value: object, expected: str) -> None:
    """They are a contract between the releases that run during an upgrade."""
    assert text_of(value, "field") == expected


def test_a_model_instance_may_be_a_field() -> None:
    """It is named by its model and primary key."""
    assert Template.parse("pay/{order}").render({"order": Order(7)}) == "pay/shop.order:7"


LOOP: list[object] = []
LOOP.append(LOOP)


@pytest.mark.parametrize(
    "value",
    [
        Order(None), Order, [1.5], {1.5: 1}, {None: 1}, {True: 1}, {(1,): 1}, {1, 2}, [b"a"], [object()],
        {1: "a", "1": "b"}, [[[[[[[[[1]]]]]]]]], LOOP, list(range(1000)), [[1] * 150] * 150,
    ],
    ids=lambda value: str(type(value).__name__),
)  # fmt: skip
def test_a_value_that_json_would_change_is_refused(value: object) -> None:
    """So is what has no end."""
    with pytest.raises(InvalidLockName):
        text_of(value, "field")


def test_a_lazy_text_is_refused_with_what_to_pass() -> None:
    """Its text depends on the language of the reader, so it would name another lock for another user."""
    with pytest.raises(InvalidLockName, match=r"Pass str\(\) of the lazy text"):
        text_of(gettext_lazy("Yes"), "field")
    with pytest.raises(InvalidLockName, match="Name an attribute of it"):
        text_of(object(), "field")
