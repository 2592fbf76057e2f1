"""The text of a value, or its digest: the same for equal values, and on both sides of a message."""

import datetime
import enum
import json
import unicodedata
import uuid
from argparse import Namespace
from decimal import Decimal
from zoneinfo import ZoneInfo

import pytest
from django.contrib.auth.models import User
from django.db import models
from django.test import override_settings
from django.test.utils import isolate_apps
from django.utils import translation
from django.utils.functional import SimpleLazyObject, lazystr
from django.utils.safestring import mark_safe
from django.utils.translation import gettext_lazy
from hypothesis import given
from hypothesis import strategies as st
from kombu.utils.json import dumps, loads

from django_zklock import Lock, ReadWriteLock, zk_lock, zk_locks, zk_semaphore
from django_zklock.core.queue.escaping import hide_tails, show_tails
from django_zklock.exceptions import InvalidLockName
from django_zklock.management.arguments import key_of
from django_zklock.names.binding import KeyBinder
from django_zklock.names.field_values import text_of
from django_zklock.names.template import MAX_DIGESTED, Template, digest


class Size(str, enum.Enum):  # noqa: UP042 - as in a project
    SMALL = "small"
    LARGE = "large"


class Level(int, enum.Enum):
    LOW = 1


UTC = datetime.UTC
BERLIN = ZoneInfo("Europe/Berlin")
NOON = datetime.datetime(2026, 7, 1, 12, tzinfo=UTC)
ZONES = st.none() | st.integers(-12, 12).map(lambda hours: datetime.timezone(datetime.timedelta(hours=hours)))
VALUES = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    st.integers(-(2**63), 2**63),
    st.uuids(),
    st.decimals(allow_nan=False, allow_infinity=False, min_value=-1000, max_value=1000),
    st.dates(),
    st.datetimes(timezones=ZONES),
    st.sampled_from([*Size, *Level]),
)


def text(value):
    try:
        return text_of(value, "field")
    except InvalidLockName:
        return None


@given(VALUES)
def test_a_value_has_one_text_on_both_sides_of_a_message(value):
    """Celery's JSON brings most types back. A plain one turns what it does not know into the text that a key has."""
    before = text(value)
    if before is not None:
        assert text(loads(dumps(value))) == before
        assert text(json.loads(json.dumps(value, default=lambda item: text_of(item, "item")))) == before


@given(st.integers(-(10**10), 10**10), st.integers(0, 10**6), st.timezones(), st.timezones())
def test_one_moment_has_one_text_in_all_time_zones(seconds, microseconds, first, second):
    moment = NOON + datetime.timedelta(seconds=seconds, microseconds=microseconds)
    assert text(moment.astimezone(first)) == text(moment.astimezone(second)) == moment.isoformat()


@given(st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**9), max_value=10**9), st.integers(0, 40))
def test_one_number_has_one_text_with_any_zeros(number, zeros):
    longer = Decimal(f"{number:f}" + ("" if "." in f"{number:f}" else ".") + "0" * zeros)
    assert longer == number
    assert text(longer) == text(number)
    assert Decimal(text_of(longer, "field")) == number
    if number == int(number):
        assert text(number) == text(int(number))


def proxied(value):
    return SimpleLazyObject(lambda: value)


class Wrapper:
    def __init__(self, wrapped):
        self.__wrapped__ = wrapped

    @property
    def __class__(self):
        return type(self.__wrapped__)


class Stamp(datetime.datetime):
    """As libraries for tables derive their time stamps."""


ONE_THING = {
    "2026-07-01T12:00:00+00:00": (
        NOON,
        NOON.astimezone(BERLIN),
        NOON.astimezone(ZoneInfo("UTC")),
        Stamp.fromtimestamp(NOON.timestamp(), BERLIN),
        NOON.astimezone(datetime.timezone(datetime.timedelta(hours=-3, minutes=-30))),
        proxied(NOON.astimezone(BERLIN)),
    ),
    "2026-07-01T10:00:00": (NOON.replace(hour=10, tzinfo=None), Stamp(2026, 7, 1, 10)),
    "2026-07-01": (datetime.date(2026, 7, 1), NOON.date(), proxied(NOON.date())),
    "1": (1, True, Level.LOW),
    "7": (7, "7", Decimal(7), Decimal("7.00"), Decimal("0.7E+1"), proxied(7), Wrapper(7)),
    "0": (0, Decimal("0.00"), Decimal("-0"), Decimal("0E+900"), Decimal("0E-900")),
    "9.9": (Decimal("9.9"), Decimal("9.90"), Decimal("99E-1"), "9.9"),
    "-1200": (-1200, Decimal("-1.2E+3"), Decimal("-1200.0")),
    "1.2345678901234567890123456789012345": (Decimal("1.23456789012345678901234567890123450"),),
    "small": ("small", Size.SMALL, mark_safe("small"), proxied("small"), proxied(proxied("small")), Wrapper("small")),
    "00000000-0000-0000-0000-000000000001": (uuid.UUID(int=1), proxied(uuid.UUID(int=1)), str(uuid.UUID(int=1))),
    "auth.user:7": (User(pk=7), User(pk="7"), proxied(User(pk=7)), proxied(proxied(User(pk=7))), Wrapper(User(pk=7))),
}


@pytest.mark.parametrize("expected", ONE_THING)
def test_one_thing_has_one_text_however_it_is_written(expected):
    assert [text(value) for value in ONE_THING[expected]] == [expected] * len(ONE_THING[expected])


def model(name, *bases, meta=None, **fields):
    attributes = {"__module__": __name__, "Meta": type("Meta", (), {"app_label": "shop", **(meta or {})}), **fields}
    metaclass = type(models.Model)
    return metaclass(name, bases or (models.Model,), attributes)


@isolate_apps()
def test_a_row_of_a_child_is_the_row_of_its_topmost_parent():
    site = model("Site")
    cafe = model("Cafe", model("Named", meta={"abstract": True}), site)
    proxy = model("Bar", cafe, meta={"proxy": True})
    diner = model("Diner", model("OfBar", proxy, meta={"abstract": True}))
    link = models.OneToOneField(site, models.CASCADE, parent_link=True)
    branch = model("Branch", site, code=models.CharField(max_length=9, primary_key=True), of=link)
    kiosk = model("Kiosk", branch)
    profile = model("Profile", site=models.OneToOneField(site, models.CASCADE, primary_key=True))
    both = model("Both", site, model("Owner", owner_id=models.AutoField(primary_key=True)))

    rows = [
        site(pk=7),
        cafe(pk=7),
        proxy(pk=7),
        diner(pk=7),
        branch(pk="a", of_id=7),
        kiosk(pk="a", of_id=7),
        both(pk=7),
        diner.from_db("default", ["cafe_ptr_id"], [7]),
        kiosk.from_db("default", ["of_id", "branch_ptr_id"], [7, "a"]),
    ]
    assert [text(row) for row in rows] == ["shop.site:7"] * len(rows)
    assert text(proxied(rows[-1])) == "shop.site:7"
    assert text(profile(pk=7)) == "shop.profile:7"
    for row in diner(), branch(pk="a"), kiosk.from_db("default", ["branch_ptr_id"], ["a"]):
        with pytest.raises(InvalidLockName, match=r"a shop\.\w+ without a primary key\. Save it"):
            text_of(row, "field")


@pytest.mark.parametrize(
    "value",
    [
        User(),
        User,
        object(),
        1.5,
        NOON.time(),
        7 + 0j,
        b"a",
        {1},
        None,
        proxied(None),
        Decimal("NaN"),
        Decimal("1E+999999999"),
        Decimal("1E-999999999"),
        NOON - NOON,
    ],
    ids=lambda value: str(type(value).__name__),
)
def test_a_value_that_json_would_change_is_refused(value):
    with pytest.raises(InvalidLockName):
        text_of(value, "field")


@pytest.mark.parametrize("make", [gettext_lazy, lazystr, lambda word: proxied(gettext_lazy(word))])
def test_a_lazy_text_is_refused_with_what_to_pass(make):
    """Its text may depend on the language of the reader, so it would name another lock for another user."""
    for language in ("en", "de"):
        with translation.override(language), pytest.raises(InvalidLockName, match="which has no sure text"):
            text_of(make("Yes"), "field")
    with pytest.raises(InvalidLockName, match="Name an attribute of it"):
        text_of(object(), "field")


def test_an_error_of_a_lazy_object_comes_out():
    def fail():
        raise LookupError("no such user")

    with pytest.raises(LookupError, match="no such user"):
        text_of(SimpleLazyObject(fail), "field")


ZKLOCK = {"URL": "zk://127.0.0.1:1/x", "LOCKS": {"feed": {"path": "feed/{url:digest}", "timeout": 3}}}
URL = "https://example.com/feed.xml?q={x}&r= y"


def of(value, field="x:digest"):
    return Template.parse(f"{{{field}}}").render({"x": value})


@given(st.text(max_size=50), st.text(max_size=50))
def test_two_texts_have_one_digest_only_if_they_are_one(first, second):
    for text in filter(None, (first, second)):
        assert len(of(text)) == 32
        assert of(text) == of(unicodedata.normalize("NFD", text)) == of(json.loads(json.dumps(text)))
    if first and second:
        same = unicodedata.normalize("NFC", first) == unicodedata.normalize("NFC", second)
        assert (of(first) == of(second)) is same


@pytest.mark.parametrize("text", ONE_THING)
def test_one_thing_has_one_digest_however_it_is_written(text):
    assert {of(value) for value in ONE_THING[text]} == {digest(text, "field")}


@pytest.mark.parametrize("value", [[1, 2], (1,), {1, 2}, {"a": 1}, [], {}, proxied([1]), [User(pk=7)]])
@pytest.mark.parametrize("field", ["x", "x:digest"])
def test_several_values_are_refused_with_what_to_write(value, field):
    """Their order, and the types in them, may differ between two callers."""
    with pytest.raises(InvalidLockName, match=r"The name in @zk_locked may be a callable that returns"):
        of(value, field)


@isolate_apps()
def test_a_row_with_a_composite_key_has_all_parts_of_the_key():
    if not hasattr(models, "CompositePrimaryKey"):
        pytest.skip("Django 5.2 has composite keys")
    order = models.IntegerField()
    line = model("Line", pk=models.CompositePrimaryKey("order", "number"), order=order, number=models.IntegerField())
    texts = [text(line(order=1, number=12)), text(line(order=11, number=2))]
    assert texts == ['shop.line:["1","12"]', 'shop.line:["11","2"]']
    with pytest.raises(InvalidLockName, match="NoneType"):
        text_of(line(order=1), "field")


@pytest.mark.parametrize("value", ["", None, "x" * (MAX_DIGESTED + 1), {1}, b"a", object()])
@pytest.mark.timeout(5)
def test_a_value_that_names_nothing_has_no_digest(value):
    """One lock for all that is missing would be a mistake. A huge value would take long."""
    with pytest.raises(InvalidLockName, match="field 'x:digest' of lock name"):
        of(value)


def test_the_digest_keeps_its_characters_between_other_fields():
    template = Template.parse("{a}9{x:digest}9{b}")
    key = template.render({"a": "19", "x": URL, "b": "29"})
    assert key == "1%39" + "9" + of(URL) + "9" + "2%39"
    assert template.may_render(key)
    assert template.fields == ("a", "x", "b")
    attribute = Template.parse("{order.url:digest}").render({"order": type("Order", (), {"url": 7})})
    assert attribute == of(7)


@pytest.mark.parametrize(
    "field",
    [
        "url:digst",  # codespell:ignore
        "order.url:Digest",
        "url: digest",
        "url:>8",
        "url:",
        "url:digest:digest",
        ":digest",
        "url!r:digest",
        "order._url:digest",
    ],
)
def test_a_misspelt_digest_is_refused(field):
    with pytest.raises(InvalidLockName, match="has the field"):
        Template.parse(f"feed/{{{field}}}")


@pytest.mark.parametrize(
    "make",
    [
        lambda: zk_lock(f"feed-{URL}"),
        lambda: zk_lock("import-100% }"),
        lambda: zk_lock("import-100% {free}"),
        lambda: zk_lock('import-{"a": 1}'),
        lambda: zk_lock(f"import-{'k' * 240}"),
        lambda: zk_lock(f"import-{'k' * 2400}"),
        lambda: zk_lock("news/{url}", fields={"url": "k" * 240}),
        lambda: zk_lock("news/{url}", fields={"url": "ü" * 40}),
    ],
    ids=range(8),
)
def test_a_value_that_is_no_name_is_told_of_the_digest(make):
    with override_settings(ZKLOCK=ZKLOCK), pytest.raises(InvalidLockName) as caught:
        assert make().key
    assert 'ass the value as a field: zk_lock("feed/{url:digest}", fields={"url": url})' in str(caught.value)


def test_every_call_takes_a_digest():
    key = f"feed/{digest(URL, 'url')}"
    fields = {"url": URL}

    def fetch(*, url=URL): ...

    with override_settings(ZKLOCK=ZKLOCK):
        for lock in (
            zk_lock("feed", fields=fields),
            zk_semaphore("feed/{url:digest}", 3, fields=fields, timeout=3),
            ReadWriteLock("feed/{url:digest}", fields=fields, timeout=3),
        ):
            assert lock.key == key
        several = zk_locks("feed", "feed/{url:digest}", "rows/{url:digest}", fields=fields, timeout=3)
        assert several.keys == (key, key.replace("feed", "rows"))
        assert zk_lock("feed", fields=fields).spec.template == "feed/{url:digest}"
        binder = KeyBinder("feed/{url:digest}", fetch)
        binder.check_fields("feed/{url:digest}")
        name, bound = binder.bind_one((), {})
        assert zk_lock(name, fields=bound, timeout=3).key == key


def test_a_key_with_a_digest_leads_to_its_entry():
    with override_settings(ZKLOCK=ZKLOCK):
        for value, hidden in ((URL, False), ("7", True)):
            key = zk_lock("feed", fields={"url": value}).key
            assert (hide_tails(key) != key) is hidden
            assert key_of(Namespace(name="feed", fields={"url": value})) == key
            for shown in (key, hide_tails(key), show_tails(key)):
                lock = Lock.of_key(shown)
                assert lock.key == key
                assert lock.spec.timeout == 3
        assert Lock.of_key("feed/7").spec.timeout == 5
        with pytest.raises(InvalidLockName, match="is not a key"):
            Lock.of_key("feed/{url:digest}")
