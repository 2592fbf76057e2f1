"""Names, keys and paths: what a lock may be called, that no two calls share one by accident, and how they are shown."""

import contextlib
import enum
import re
import time
import types
import unicodedata

import pytest
from hypothesis import assume, example, given, reject
from hypothesis import strategies as st

from django_zklock.core.queue.escaping import MAX_SEGMENT, MAX_SHOWN, printable, session_hex, shortened, shown_key
from django_zklock.core.queue.nodes import parse
from django_zklock.exceptions import InvalidLockName
from django_zklock.names.template import MAX_KEY, Template, check_key, escape, is_key, key_of, own_key, path, unescape

ENDINGS = st.sampled_from(["", "0", "1234567890", "0000000005", "-000000005", "-2147483648", "__lock__0000000001"])
# Nearly all of them fit to be names, or hypothesis would give up: what is refused has tests of its own.
SPEAKABLE = st.characters(exclude_categories=["Cs", "Cc", "Cf"])
TEXTS = st.builds(str.__add__, st.text(SPEAKABLE, max_size=12) | st.text("ab/%. -_12", max_size=40), ENDINGS)
# Few characters, so that a collision is likely where one is possible; with the hex digits of some escapes.
DENSE = st.text("ab:-/% .é25", min_size=1, max_size=8)
HOSTILE = {
    "empty": "",
    "dot": ".",
    "dots": "..",
    "nul": "a\x00b",
    "newline": "a\n",
    "delete": "a\x7f",
    "c1": "a\x85",
    "lone surrogate": "a\ud800",
    "lone low surrogate": "\udfffa",
    "bidi override": "a\u202eb",
    "bidi isolate": "a\u2066b",
    "huge": "x" * 100_000,
    "huge of surrogates": "\ud800" * 100_000,
    "huge of slashes": "/" * 100_000,
    "huge of braces": "{" * 100_000,
    "huge of marks": "a" + "\u0301\u0316" * 50_000,
}


class Colour(enum.Enum):
    RED = "red"
    NOTHING = None


class Order:
    pk = 7
    number = "2026/1"
    _secret = "s"
    customer = types.SimpleNamespace(name="Ann")

    def total(self):
        return 1

    @property
    def broken(self):
        raise ZeroDivisionError


@given(TEXTS)
@example("e\u0301")
@example("50%")
@example("%30")
@example("1234567890")
@example("a/1234567890")
@example("...")
@example("_c_2bd53a55-ce0a-4d7b-9a4f-a8e7f2e1d111-lock-0000000005")
@example("_c_2bd53a55-ce0a-4d7b-9a4f-a8e7f2e1d111-lock--000000005")
@example("0123456789abcdef0123456789abcdef__lock__0000000005")
@example("order-123456789")
def test_an_escaped_text_is_a_plain_segment_that_looks_like_no_contender(text):
    """The directory of a nested key is passed over when the queue of the outer key is read."""
    try:
        segment = escape(text)
    except InvalidLockName:
        reject()
    assert unescape(segment) == unicodedata.normalize("NFC", text)
    assert re.fullmatch(r"(?:[A-Za-z0-9_.~:@=+,-]|%[0-9A-F]{2})+", segment)
    assert segment not in (".", "..")
    assert len(segment) <= MAX_SEGMENT
    assert not re.search(r"[0-9]{10}\Z", segment)
    assert parse(segment) is None


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("where", ["escape", "template", "value"])
@pytest.mark.timeout(5)
def test_a_hostile_text_names_no_lock(text, where):
    with pytest.raises(InvalidLockName) as caught:
        if where == "escape":
            escape(text)
        elif where == "template":
            Template.parse(text)
        else:
            Template.parse("a/{b}").render({"b": text})
    assert str(caught.value).isascii()
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 400


@given(st.text())
def test_any_text_is_a_template_or_refused(text):
    with contextlib.suppress(InvalidLockName):
        template = Template.parse(text)
        template.render(dict.fromkeys(template.fields, "x"))


@given(
    literals=st.lists(st.text("ab:-/ %é25", min_size=1, max_size=3), min_size=1, max_size=4),
    lead=st.booleans(),
    data=st.data(),
)
def test_different_values_have_different_keys(literals, lead, data):
    pieces = [f"{{f{index}}}{literal}" for index, literal in enumerate(literals)]
    text = "".join(pieces) + ("{last}" if lead else "")
    try:
        template = Template.parse(text)
    except InvalidLockName:
        assume(False)
    values = st.tuples(*[DENSE] * len(template.fields))
    first, other = data.draw(values), data.draw(values)
    assume(first != other)
    try:
        keys = [template.render(dict(zip(template.fields, row, strict=True))) for row in (first, other)]
    except InvalidLockName:
        assume(False)
    assert keys[0] != keys[1]


@pytest.mark.parametrize(
    "text",
    [
        "/",
        "/a",
        "a/",
        "a//b",
        "a/../{b}",
        "a/./b",
        "{",
        "}",
        "a{",
        "a}b",
        "{a",
        "a}",
        "{{a}",
        "{a}}",
        "{}",
        "{0}",
        "{a[0]}",
        "{a!r}",
        "{a:>3}",
        "{a:}",
        "{a b}",
        "{a()}",
        "{a.}",
        "{.a}",
        "{a..b}",
        "{a/b}",
        "{a._b}",
        "{a.__class__}",
        "{a.b.__dict__}",
        "{a}{b}",
        "{a} {b}",
        "{a}é{b}",
        "{a}{{{b}",
    ],
)
def test_a_template_has_only_literals_and_plain_fields(text):
    with pytest.raises(InvalidLockName):
        Template.parse(text)


def test_a_wrong_field_is_named():
    with pytest.raises(InvalidLockName, match=r"'inv/\{a\}/\{b\[0\]\}' has the field 'b\[0\]'"):
        Template.parse("inv/{a}/{b[0]}")
    template = Template.parse("inventory/{skuu}")
    with pytest.raises(InvalidLockName, match=r"uses \{skuu\}, but the call has request, sku"):
        template.check_fields(["request", "sku"])
    with pytest.raises(InvalidLockName, match="the call has nothing"):
        template.check_fields([])
    template.check_fields({"skuu", "request"})


@pytest.mark.parametrize("value", ["", float("nan"), object(), Order(), Order, Colour.NOTHING, 10**300])
def test_a_value_without_a_sure_text_is_refused(value):
    """An object's address, or nothing at all, would be another lock in every process, or one lock for everything."""
    with pytest.raises(InvalidLockName, match=r"field 'b' of lock name 'a/\{b\}'"):
        Template.parse("a/{b}").render({"b": value})


@pytest.mark.parametrize(
    "field", ["order.total", "order.missing", "order.pk.missing", "missing", "order", "order.customer"]
)
def test_a_field_that_leads_to_no_value_is_refused(field):
    with pytest.raises(InvalidLockName, match=f"field '{re.escape(field)}' of lock name 'a/"):
        Template.parse(f"a/{{{field}}}").render({"order": Order()})


def test_the_error_of_a_property_passes_through():
    with pytest.raises(ZeroDivisionError):
        Template.parse("a/{order.broken}").render({"order": Order()})


def test_the_length_of_a_key_is_limited():
    fields = [f"f{index}" for index in range(6)]
    template = Template.parse("/".join(f"{{{name}}}" for name in fields))
    assert len(template.render(dict.fromkeys(fields, "x" * 100))) < MAX_KEY
    with pytest.raises(InvalidLockName, match="1000"):
        template.render(dict.fromkeys(fields, "x" * MAX_SEGMENT))


def test_fields_are_the_names_a_call_must_have():
    assert Template.parse("{b.x}/{a}/{b.y}-{{c}}").fields == ("b", "a")
    assert Template.parse("plain").fields == ()


@pytest.mark.parametrize("base", ["/zklock", "/zklock/", "/a/b", "/"])
def test_a_path_leads_back_to_its_key(base):
    assert key_of(base, path(base, "a/b%2Fc")) == "a/b%2Fc"
    assert "//" not in path(base, "a")


@given(TEXTS, TEXTS)
@example("1234567890", "a-123456789")
@example("123456789%38", "123456789%38")
@example("1", "179542018")
def test_a_key_shows_its_digits_and_its_path_hides_them(first, second):
    with contextlib.suppress(InvalidLockName):
        for text in ("order/{a}/{b}", "{a}8{b}"):
            key = Template.parse(text).render({"a": first, "b": second})
            directory = path("/zklock", key)
            assert key_of("/zklock", directory) == key
            assert not re.search(r"[0-9-][0-9]{9}(/|\Z)", directory)
            assert own_key(key) == own_key(directory.removeprefix("/zklock/")) == key


@pytest.mark.parametrize("other", ["/zklocks/a", "/zklock", "/zklock/", "/", "", "zklock/a"])
def test_a_path_outside_the_base_has_no_key(other):
    with pytest.raises(InvalidLockName):
        key_of("/zklock", other)


LITERALS = st.lists(st.text("ab:-/ %é25", min_size=1, max_size=3), min_size=1, max_size=5)
TEMPLATES = st.builds(
    lambda literals, fields, end: (
        "".join(f"{{{field}}}{text}" for field, text in zip(fields, literals, strict=False)) + end
    ),
    LITERALS,
    st.permutations(["a", "b:digest", "c", "d", "e:digest", "f"]),
    st.sampled_from(["", "{last}"]),
)


@given(TEMPLATES, st.lists(DENSE | TEXTS, min_size=7, max_size=7))
@example("shop/{a}/{b}", ["a", "1234567890"])
@example("{a}0{b}", ["11111111", "0"])
@example("{a}7{b}", ["7", "1112223337"])
@example("shop-1234567890/{a}{{}}/é", ["a"])
def test_a_template_knows_the_keys_that_it_may_render(text, values):
    with contextlib.suppress(InvalidLockName):
        template = Template.parse(text)
        key = template.render(dict(zip(template.fields, values, strict=False)))
        assert template.may_render(key)


@pytest.mark.parametrize(
    "key", ["shop", "shop/a", "shop/a/b/c", "other/a/b", "shop/a/x:", "shop/a b/x:c", "shop/ü/x:c"]
)
def test_a_template_knows_keys_that_it_never_renders(key):
    assert not Template.parse("shop/{a}/x:{b}").may_render(key)


@given(
    st.text("a:-.7%3A", min_size=1, max_size=9), st.sampled_from(["{a}:{b}", "{a}-{b}:{c}", "{a}7{b}", "{a}:-{b}.x"])
)
def test_a_template_may_render_only_keys_that_show_where_each_value_begins_and_ends(key, text):
    template = Template.parse(text)
    literals = [literal for literal in re.split(r"\{.\}", text) if literal]
    if template.may_render(key):
        assert all(key.count(literal) >= 1 for literal in literals)
        values = [unescape(value) for value in re.split("|".join(map(re.escape, literals)), key)][
            : len(template.fields)
        ]
        assert {".", ".."} & {*values} or template.render(dict(zip(template.fields, values, strict=True))) == key


SIX = [
    "{a}:{b}:{c}:{d}:{e}:{f}:lock",
    "{a}-{b}-{c}-{d}-{e}-{f}",
    "{a}x{b}x{c}x{d}x{e}x{f}.",
    "{a}.{b}.{c}.{d}.{e}.{f:digest}",
]
SIX += ["{a}aaaa:{b}aaaa:{c}aaaa:{d}aaaa:{e}aaaa:{f}", "{a}7{b}7{c}7{d}7{e}7{f}7", "{a}/{b}:{c}-{d}:{e}-{f}"]


@pytest.mark.timed
@pytest.mark.parametrize("template", SIX)
@pytest.mark.parametrize("separators", [":", "-", "x", ".", "a", "a:", "7", "%3A", "%37", "a-", "0a:-"])
def test_a_key_of_separators_costs_no_time(template, separators):
    """A client of the coordinator chooses the key, and the match lets no other thread run."""
    parsed, key = Template.parse(template), (separators * 1000)[:1000]
    parsed.may_render(key)  # compiles the pattern
    took = []
    for _ in range(5):
        began = time.thread_time()
        parsed.may_render(key)
        took.append(time.thread_time() - began)
    assert min(took) < 0.005


IMPOSSIBLE = ["", "/", "/a", "a/", "a//b", ".", "a/..", "a/./b", "!x", "a/!x"]
IMPOSSIBLE += ["a\x00", "\ud800", "a\u202eb", "a\u200b", "k" * 1001]


@pytest.mark.parametrize("key", IMPOSSIBLE, ids=range(len(IMPOSSIBLE)))
def test_impossible_keys_of_locks_are_refused(key):
    """The admin, the command, inspection and operations have one rule. Keys of other clients escape nothing."""
    assert all(map(is_key, ["a", "a b", "inventory/4711", "é", "a:b/c d", "_c_x", "a!b", "order/1234567890"]))
    assert not is_key(key)
    with pytest.raises(InvalidLockName):
        check_key(key)


@given(st.text(st.characters(codec=None)), st.integers(1, 100))
def test_every_text_is_capped_and_prints(text, limit):
    shown = printable(text, limit)
    assert len(shown) <= limit
    assert shown.isprintable()
    shown.encode()
    assert shortened(text, len(text)) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        *((text, text) for text in ("", "GET /buy/<sku>", "Zoë", "日本", "x" * MAX_SHOWN)),
        ("\x1b[31m a\r\nb\u202ec\ud800\u200b", r"\x1b[31m a\r\nb\u202ec\ud800\u200b"),
        ("x" * 600, "x" * 511 + "…"),
    ],
)
def test_only_what_does_not_print_is_escaped(text, shown):
    assert printable(text) == shown


def test_a_session_id_is_shown_as_zookeeper_prints_it():
    """Without a sign: a server whose number is above 127 gives negative ones."""
    assert session_hex(-1) == "0xffffffffffffffff"
    assert session_hex(0x100002AB) == "0x100002ab"
    assert session_hex(None) == session_hex(0) == ""


@pytest.mark.parametrize(
    ("key", "shown"),
    [
        ("kunden/J%C3%BCrgen%20Gro%C3%9F", "kunden/Jürgen Groß"),
        ("%E6%97%A5%E6%9C%AC/%22a%22", '日本/"a"'),
        ("a%2Fb%25/%7Bx%7D", "a%2Fb%25/%7Bx%7D"),
        ("%20a%20%20b%20/c%20d", "%20a%20%20b%20/c d"),
        ("a%E2%80%8Bb%E2%80%AEc%0A", "a%E2%80%8Bb%E2%80%AEc%0A"),
        ("%41%c3%bc%C3%FF%", "%41%c3%bc%C3%FF%"),
        ("e%CC%81", "e%CC%81"),
    ],
)
def test_a_key_is_shown_as_people_write_it(key, shown):
    assert shown_key(key) == shown


@given(st.lists(st.text(), min_size=2, max_size=2, unique=True))
def test_two_keys_are_never_shown_alike(texts):
    try:
        keys = {escape(text) for text in texts}
    except InvalidLockName:
        return
    shown = {shown_key(key) for key in keys}
    assert len(shown) == len(keys)
    assert all(text.isprintable() for text in shown)
