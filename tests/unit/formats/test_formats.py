"""The names in `texts` are written and read as they are there: other releases and other libraries rely on them."""

import pytest

from django_zklock.core.queue import markers
from django_zklock.core.queue.escaping import path
from django_zklock.core.queue.nodes import Mark, new_guid, parse, prefix
from django_zklock.exceptions import UnreadableQueue
from django_zklock.names.field_values import text_of
from django_zklock.names.template import Template, escape
from unit.formats.texts import GUIDS, OF_OTHERS, PREFIXES, REFUSED, SEGMENTS, TEMPLATES, VALUES


@pytest.mark.parametrize(("kind", "grammar"), PREFIXES)
def test_the_name_of_a_contender_has_its_kind_and_grammar(kind, grammar):
    written = prefix(GUIDS[Mark.OWN], kind, grammar)
    assert written == PREFIXES[kind, grammar]
    child = parse(f"{written}0000000007")
    assert child.sequence == 7
    assert child.guid.replace("-", "") == GUIDS[Mark.OWN].replace("-", "")


@pytest.mark.parametrize("name", OF_OTHERS)
def test_a_contender_of_curator_or_kazoo_is_read(name):
    child = parse(name)
    assert (child.kind, child.sequence) == OF_OTHERS[name]
    assert not child.by_us


@pytest.mark.parametrize("name", REFUSED)
def test_a_child_of_an_unknown_kind_is_refused(name):
    with pytest.raises(UnreadableQueue):
        parse(name)


def test_a_marker_of_a_later_release_is_no_contender():
    assert parse("!new:7:") is None
    assert markers.is_marker("!new:7:")


def test_the_marker_of_a_limit_has_its_number():
    assert markers.limit_marker(3) == "!limit:3:"
    assert markers.limit_in("!limit:3:") == 3


def test_new_guids_have_the_mark_and_the_version():
    for mark, guid in GUIDS.items():
        made = new_guid(mark)
        assert (made[:4], made[14], len(made)) == (guid[:4], guid[14], len(guid))


@pytest.mark.parametrize("text", SEGMENTS)
def test_a_segment_is_escaped(text):
    assert escape(text) == SEGMENTS[text]


@pytest.mark.parametrize(("value", "text"), VALUES)
def test_a_value_has_one_text(value, text):
    assert text_of(value, "field") == text


@pytest.mark.parametrize(("template", "fields", "key"), TEMPLATES)
def test_a_template_has_one_key(template, fields, key):
    assert Template.parse(template).render(fields) == key


def test_the_directory_of_a_key_has_no_ten_digits_at_the_end_of_a_part():
    written = path("/shop/zklock", "orders/1234567890/n1-123456789/a%2Fb")
    assert written == "/shop/zklock/orders/123456789%30/n1-12345678%39/a%2Fb"
