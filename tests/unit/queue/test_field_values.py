"""The text of a value: the same for equal values, and on both sides of a message, whatever that makes of it."""

from __future__ import annotations

import datetime
import enum
import json
import types
import uuid
from collections.abc import Callable
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.contrib.auth.models import User
from django.db import models
from django.test.utils import isolate_apps
from django.utils import translation
from django.utils.functional import SimpleLazyObject, lazystr
from django.utils.safestring import mark_safe
from django.utils.translation import gettext_lazy
from hypothesis import given
from hypothesis import strategies as st
from kombu.utils.json import dumps, loads

from django_zklock.exceptions import InvalidLockName
from django_zklock.names.field_values import text_of
from django_zklock.names.template import Template


class Size(str, enum.Enum):
    SMALL = "small"
    LARGE = "large"


class Level(int, enum.Enum):
    LOW = 1


class Meta:
    label_lower = "shop.order"


class Order:
    _meta = Meta

    def __init__(self, pk: object) -> None:
        self.pk = pk


class Proxy(Order):
    _meta: Any = types.SimpleNamespace(label_lower="shop.paidorder", concrete_model=Order)


UTC = datetime.timezone.utc
BERLIN = ZoneInfo("Europe/Berlin")
NOON = datetime.datetime(2026, 7, 1, 12, tzinfo=UTC)
CET = datetime.timezone(datetime.timedelta(hours=1))
ZONES = st.none() | st.integers(-12, 12).map(lambda hours: datetime.timezone(datetime.timedelta(hours=hours)))
SCALARS = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    st.integers(-(2**63), 2**63),
    st.booleans(),
    st.floats(),
    st.uuids(),
    st.decimals(allow_nan=False, allow_infinity=False, min_value=-1000, max_value=1000),
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
    """Through a JSON that turns what it does not know into text, if that is the text that a key has."""
    before = text(value)
    if before is not None:
        assert text(json.loads(json.dumps(value, default=lambda item: text_of(item, "item")))) == before


@given(st.integers(-(10**10), 10**10), st.integers(0, 10**6), st.timezones(), st.timezones())
def test_one_moment_has_one_text_in_all_time_zones(
    seconds: int, microseconds: int, first: datetime.tzinfo, second: datetime.tzinfo
) -> None:
    """Django reads it in UTC, and a form gives it in the zone of the user."""
    moment = NOON + datetime.timedelta(seconds=seconds, microseconds=microseconds)
    assert text(moment.astimezone(first)) == text(moment.astimezone(second)) == moment.isoformat()


@given(st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**9), max_value=10**9), st.integers(0, 40))
def test_one_number_has_one_text_with_any_zeros(number: Decimal, zeros: int) -> None:
    """A database adds them."""
    longer = Decimal(f"{number:f}" + ("" if "." in f"{number:f}" else ".") + "0" * zeros)
    assert longer == number
    assert text(longer) == text(number)
    assert Decimal(text_of(longer, "field")) == number
    if number == int(number):
        assert text(number) == text(int(number))


def proxied(value: object) -> Any:
    return SimpleLazyObject(lambda: value)


class Wrapper:
    def __init__(self, wrapped: object) -> None:
        self.__wrapped__ = wrapped

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return type(self.__wrapped__)


class Stamp(datetime.datetime):
    """As libraries for tables derive their time stamps."""


ONE_THING: dict[str, tuple[object, ...]] = {
    "2026-07-01T12:00:00+00:00": (
        NOON, NOON.astimezone(BERLIN), NOON.astimezone(ZoneInfo("UTC")), Stamp.fromtimestamp(NOON.timestamp(), BERLIN),
        NOON.astimezone(datetime.timezone(datetime.timedelta(hours=-3, minutes=-30))), proxied(NOON.astimezone(BERLIN)),
    ),
    "2026-07-01T10:00:00": (NOON.replace(hour=10, tzinfo=None), Stamp(2026, 7, 1, 10)),
    "2026-07-01": (datetime.date(2026, 7, 1), NOON.date(), proxied(NOON.date())),
    "12:00:00": (datetime.time(12), NOON.time(), datetime.time(12, tzinfo=BERLIN)),
    "7": (7, "7", Decimal(7), Decimal("7.00"), Decimal("0.7E+1"), proxied(7), Wrapper(7)),
    "0": (0, Decimal("0.00"), Decimal("-0"), Decimal("0E+900"), Decimal("0E-900")),
    "9.9": (Decimal("9.9"), Decimal("9.90"), Decimal("99E-1"), "9.9"),
    "-1200": (-1200, Decimal("-1.2E+3"), Decimal("-1200.0")),
    "1.2345678901234567890123456789012345": (Decimal("1.23456789012345678901234567890123450"),),
    "small": ("small", Size.SMALL, mark_safe("small"), proxied("small"), proxied(proxied("small")), Wrapper("small")),
    "00000000-0000-0000-0000-000000000001": (uuid.UUID(int=1), proxied(uuid.UUID(int=1)), str(uuid.UUID(int=1))),
    "auth.user:7": (User(pk=7), User(pk="7"), proxied(User(pk=7)), proxied(proxied(User(pk=7))), Wrapper(User(pk=7))),
    '["2026-07-01T12:00:00+00:00","9.9"]': (
        [NOON, Decimal("9.90")], (NOON.astimezone(BERLIN), Decimal("9.9")), proxied([proxied(NOON), "9.9"]),
    ),
    '{"at":"2026-07-01T12:00:00+00:00","by":["auth.user:7"]}': (
        {"at": NOON, "by": [User(pk=7)]}, {"by": [proxied(User(pk=7))], "at": NOON.astimezone(BERLIN)},
        proxied({proxied("at"): NOON, "by": proxied([User(pk=7)])}),
    ),
    '{"z":"1","\xe9":"2"}': ({"\xe9": 2, "z": 1}, {"e\u0301": 2, "z": 1}, {"z": 1, "e\u0301": 2}),
}  # fmt: skip


@pytest.mark.parametrize("expected", ONE_THING)
def test_one_thing_has_one_text_however_it_is_written(expected: str) -> None:
    assert [text(value) for value in ONE_THING[expected]] == [expected] * len(ONE_THING[expected])


def model(name: str, *bases: Any, meta: dict[str, Any] | None = None, **fields: Any) -> Any:
    attributes = {"__module__": __name__, "Meta": type("Meta", (), {"app_label": "shop", **(meta or {})}), **fields}
    metaclass: Any = type(models.Model)
    return metaclass(name, bases or (models.Model,), attributes)


@isolate_apps()
def test_a_row_of_a_child_is_the_row_of_its_topmost_parent() -> None:
    site = model("Site")
    cafe = model("Cafe", model("Named", meta={"abstract": True}), site)
    proxy = model("Bar", cafe, meta={"proxy": True})
    diner = model("Diner", model("OfBar", proxy, meta={"abstract": True}))
    link: Any = models.OneToOneField(site, models.CASCADE, parent_link=True)
    branch = model("Branch", site, code=models.CharField(max_length=9, primary_key=True), of=link)
    kiosk = model("Kiosk", branch)
    profile = model("Profile", site=models.OneToOneField(site, models.CASCADE, primary_key=True))
    both = model("Both", site, model("Owner", owner_id=models.AutoField(primary_key=True)))

    rows = [
        site(pk=7), cafe(pk=7), proxy(pk=7), diner(pk=7), branch(pk="a", of_id=7), kiosk(pk="a", of_id=7),
        diner.from_db("default", ["cafe_ptr_id"], [7]),
        kiosk.from_db("default", ["of_id", "branch_ptr_id"], [7, "a"]),
    ]  # fmt: skip
    assert [text(row) for row in rows] == ["shop.site:7"] * len(rows)
    assert text([proxied(rows[-1])]) == '["shop.site:7"]'
    assert text(profile(pk=7)) == "shop.profile:7"
    for row in diner(), branch(pk="a"), kiosk.from_db("default", ["branch_ptr_id"], ["a"]):
        with pytest.raises(InvalidLockName, match=r"a shop\.\w+ without a (primary key|value of 'of_id').* Save it"):
            text_of(row, "field")
    with pytest.raises(InvalidLockName, match=r"has several parents. Use its attribute 'site_ptr' or 'owner_ptr'"):
        text_of(both(pk=7), "field")


def test_a_model_instance_may_be_a_field() -> None:
    assert Template.parse("pay/{order}").render({"order": Order(7)}) == "pay/shop.order:7"


LOOP: list[object] = []
LOOP.append(LOOP)


@pytest.mark.parametrize(
    "value",
    [
        Order(None), Order, [float("nan")], {1.5: 1}, {None: 1}, {True: 1}, {(1,): 1}, {1, 2}, [b"a"], [object()],
        {1: "a", "1": "b"}, {"\xe9": 1, "e\u0301": 2}, float("inf"), 7 + 0j, b"a", {1}, None, proxied(None),
        Decimal("NaN"), Decimal("1E+999999999"), Decimal("1E-999999999"), NOON - NOON, NOON.astimezone(CET).timetz(),
        datetime.datetime.min.replace(tzinfo=CET), [[[[[[[[[1]]]]]]]]], LOOP, list(range(1000)), [[1] * 150] * 150,
    ],
    ids=lambda value: str(type(value).__name__),
)  # fmt: skip
def test_a_value_that_json_would_change_is_refused(value: object) -> None:
    with pytest.raises(InvalidLockName):
        text_of(value, "field")


@pytest.mark.parametrize("make", [gettext_lazy, lazystr, lambda word: proxied(gettext_lazy(word))])
def test_a_lazy_text_is_refused_with_what_to_pass(make: Callable[[str], Any]) -> None:
    """Its text may depend on the language of the reader, so it would name another lock for another user."""
    for value in (make("Yes"), [make("Yes")], {"a": make("Yes")}):
        for language in ("en", "de"):
            with translation.override(language), pytest.raises(InvalidLockName, match=r"Pass str\(\) of the lazy text"):
                text_of(value, "field")
    with pytest.raises(InvalidLockName, match="Name an attribute of it"):
        text_of(object(), "field")


def test_an_error_of_a_lazy_object_comes_out() -> None:
    def fail() -> object:
        raise LookupError("no such user")

    with pytest.raises(LookupError, match="no such user"):
        text_of(SimpleLazyObject(fail), "field")
