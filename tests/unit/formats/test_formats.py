"""
The formats that other processes, older databases and user code read are frozen: `formats.json` has a copy of each.

That file is written by hand. A change of a line in it breaks users; see "Formats" in CONTRIBUTING.md.
"""

import json
from pathlib import Path

import pytest

from django_zklock.core.queue.nodes import new_guid
from unit.formats.facts import FACTS, found
from unit.formats.texts import GUIDS, TEXTS

GOLDEN = json.loads((Path(__file__).parent / "formats.json").read_text())
ONLY_READ = "only read"
"""In an entry: texts that other releases, or other clients, write."""
RULE = (
    "Other processes, older databases and user code rely on what tests/unit/formats/formats.json has. Add lines that "
    "are NEW to that file. A change needs a new name, a migration, or an entry in docs/how-to/upgrade.md; and what "
    'others have written before must still be read, so its entry stays, with "only read".'
)


def flat(value, path=""):
    """Yield each name and its value. The items of a list are names, too."""
    if isinstance(value, dict) and value:
        for name, inner in value.items():
            yield from flat(inner, f"{path} > {name}")
        return
    for item in value if isinstance(value, list) else ():
        yield f"{path} > {item}", "in the list"
    if not isinstance(value, list):
        yield path, json.dumps(value, ensure_ascii=False)


def compare(section, golden, today):
    before, now = dict(flat(golden, section)), dict(flat(today, section))
    lines = [f"REMOVED {name}: {before[name]}" for name in sorted(before.keys() - now.keys())]
    both = sorted(name for name in before.keys() & now.keys() if before[name] != now[name])
    lines += [f"CHANGED {name}: {before[name]} -> {now[name]}" for name in both]
    lines += [f"NEW {name}: {now[name]}" for name in sorted(now.keys() - before.keys())]
    if lines:
        pytest.fail("\n".join([RULE, *lines]), pytrace=False)


def test_every_kind_of_format_is_frozen():
    compare(
        "sections",
        {name: sorted(GOLDEN[name]) for name in ("facts", "texts")},
        {"facts": sorted(FACTS), "texts": sorted(TEXTS)},
    )


@pytest.mark.parametrize("section", FACTS)
def test_no_name_or_number_has_changed(section):
    compare(section, GOLDEN["facts"].get(section), FACTS[section]())


def test_each_public_name_can_be_imported():
    imports = GOLDEN["facts"]["imports"].items()
    assert [f"{module}.{name}" for module, names in imports for name in names if found(module, name) is None] == [], (
        RULE
    )


def text_in(entry):
    """Return the text of an entry. The file has JSON as such, so that each field is a line of the comparison."""
    text = entry["text"]
    return text if isinstance(text, str) else json.dumps(text, ensure_ascii=False)


@pytest.mark.parametrize("kind", TEXTS)
def test_each_text_is_written_as_before(kind):
    write, _ = TEXTS[kind]
    entries = GOLDEN["texts"][kind].items()
    compare(
        kind,
        {name: entry["text"] for name, entry in entries if ONLY_READ not in entry},
        {name: json.loads(text) if text.startswith("{") else text for name, text in write().items()},
    )


def read_by(read, text):
    try:
        return read(text)
    except Exception as error:
        return repr(error)


@pytest.mark.parametrize("kind", TEXTS)
def test_each_text_of_others_is_read_as_before(kind):
    """It is in ZooKeeper, in a broker or on its way, and stays there over an upgrade."""
    _, read = TEXTS[kind]
    golden = GOLDEN["texts"][kind]
    compare(
        f"{kind}, as it is read",
        {name: entry.get("means") for name, entry in golden.items()},
        {name: read_by(read, text_in(entry)) for name, entry in golden.items()},
    )


def test_new_guids_have_the_mark_and_the_version():
    for mark, guid in GUIDS.items():
        made = new_guid(mark)
        assert (made[:4], made[14], len(made)) == (guid[:4], guid[14], len(guid))
