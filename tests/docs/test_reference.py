"""`reference/locks.md` names all that the API has, and `explanation/architecture.md` only what the code has."""

from __future__ import annotations

import configparser
import inspect
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from django.dispatch import Signal
from support.docs import DOCS, run, text_of

import django_zklock
from django_zklock import checks, conf, signals, zk_lock
from django_zklock.conf import arguments
from django_zklock.conf.options import OPTION_NAMES
from django_zklock.fencing import model
from django_zklock.inspection import ConnectionInfo, LockInfo, ScannedContender, Snapshot, Wait, serialize
from django_zklock.locks.multi import MultiHold, MultiLock
from django_zklock.testing import LockTester

LOCKS = text_of("reference/locks.md")
ARCHITECTURE = text_of("explanation/architecture.md")
INSPECTION = text_of("reference/inspection.md")
SETTINGS = text_of("reference/settings.md")
SIGNALS = text_of("reference/signals.md")
COLUMNS = (
    arguments.LockArguments,
    arguments.SideArguments,
    arguments.LeaderArguments,
    arguments.LockedOptions,
)
"""The columns of the table of options, from left to right."""


def section(heading: str) -> str:
    """Return the text below a heading, up to the next one of any level."""
    return re.split(r"^#+ ", LOCKS.partition(f"# {heading}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]


def named(text: str) -> set[str]:
    """Return the names in backticks: those of `name(arguments)`, too."""
    return set(re.findall(r"`(\w+)[`(]", text))


def test_every_public_name_is_in_the_reference() -> None:
    """Each name that `django_zklock` exports has an entry."""
    assert set(django_zklock.__all__) <= named(LOCKS)


@pytest.mark.parametrize("name", ["Lock", "MultiLock", "ReadWriteLock", "Hold", "MultiHold", "Leader"])
def test_every_public_attribute_is_in_the_section_of_its_class(name: str) -> None:
    """Methods and properties, and what an instance has."""
    kind = {"MultiLock": MultiLock, "MultiHold": MultiHold}.get(name) or getattr(django_zklock, name)
    public = {attribute for attribute in dir(kind) if not attribute.startswith("_")}
    if name in ("Lock", "ReadWriteLock", "Leader"):
        public.add("name")
    assert public - named(section(f"`{name}`")) == set()


@pytest.mark.parametrize("kind", [ConnectionInfo, LockInfo, ScannedContender, Snapshot, Wait])
def test_every_field_of_the_values_is_named(kind: Any) -> None:
    """Inspection, operations and the leader return these values; the page of inspection describes them."""
    assert set(kind.__dataclass_fields__) <= named(INSPECTION)


def test_the_table_of_options_is_that_of_the_code() -> None:
    """Each option of each call, and no other; `zk_semaphore` has its limit as an argument."""
    rows = re.findall(r"^\| (?:\[)?`(\w+)`[^|]*\|[^|]*((?:\|[^|]*){4})\|$", section("Options"), flags=re.MULTILINE)
    table = {option: [cell.strip() for cell in cells.split("|")[1:]] for option, cells in rows}
    for column, options in enumerate(COLUMNS):
        assert {option for option, cells in table.items() if "yes" in cells[column]} == set(options.__annotations__)


def test_the_settings_explain_every_option_that_they_can_have() -> None:
    """One entry each, with the option's name in bold."""
    explained = re.findall(r"^\* \*\*`(\w+)`\*\*", SETTINGS, flags=re.MULTILINE)
    assert set(OPTION_NAMES) <= set(explained)


def test_the_signature_of_the_decorator_has_every_option() -> None:
    """It is written out for `help()`. An option that it lacks would be ignored."""
    parameters = inspect.signature(django_zklock.zk_locked).parameters
    assert {*parameters} - {"name", "more", "unknown"} == set(arguments.LockedOptions.__annotations__)


def test_the_table_of_checks_is_that_of_the_code() -> None:
    """Each id that a check or the validator reports, in order, with a problem and a cure."""
    sources = [*Path(conf.__file__).parent.glob("*.py"), Path(checks.__file__), Path(str(model.__file__))]
    ids = {code for path in sources for code in re.findall(r'"(?:zklock\.)?([EW]\d{3})"', path.read_text())}
    rows = re.findall(r"^\| ([EW]\d{3}) \| [^|]+ \| [^|]+ \|$", SETTINGS, flags=re.MULTILINE)
    assert rows == sorted(ids)


def test_every_field_of_the_json_is_named() -> None:
    """The command's page names what `list`, `show` and the admin write."""
    written = {name for names in serialize.NAMES.values() for name in names}
    assert len(written) > 40
    assert written - named(text_of("reference/command.md")) == set()


def test_every_signal_is_on_its_page() -> None:
    """The page has the arguments that the module names."""
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*?) \|", SIGNALS, flags=re.MULTILINE))
    assert set(rows) == {name for name, value in vars(signals).items() if isinstance(value, Signal)}
    for name, arguments_of_signal in rows.items():
        assert f"`{name}({arguments_of_signal.replace('`', '')})`" in str(signals.__doc__)


def test_the_example_of_signals_counts_grants_by_kind(zklock: LockTester) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", SIGNALS, flags=re.DOTALL)
    names = run(code)
    with zk_lock("a", kind="read"), zk_lock("b", limit=2):
        pass
    zklock.eventually(lambda: names["granted"] == {"read": 1, "semaphore": 1})


def test_the_picture_shows_the_layers_in_the_order_of_the_contract() -> None:
    """From the top to the bottom."""
    settings = configparser.ConfigParser()
    settings.read(DOCS.parent / "setup.cfg")
    rooms = re.findall(r"\w+", settings["importlinter:contract:layers"]["layers"])
    picture = re.findall(r"^ ((?:\w+, )*\w+)(?: {3,}|$)", ARCHITECTURE, flags=re.MULTILINE)
    drawn = [room for line in picture for room in line.split(", ")]
    assert sorted(drawn) == sorted(rooms)
    layers = [re.findall(r"\w+", line) for line in settings["importlinter:contract:layers"]["layers"].splitlines()]
    assert [set(line.split(", ")) for line in picture] == [set(layer) for layer in layers if layer]


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`((?:[a-z_]+\.)+[A-Z]\w+)`", ARCHITECTURE))))
def test_the_classes_of_the_architecture_exist(name: str) -> None:
    """Each is where the page says."""
    module, _, attribute = name.rpartition(".")
    assert hasattr(import_module(f"django_zklock.{module}"), attribute)


def test_the_modules_of_the_architecture_exist() -> None:
    """Folders and modules that are named without a class."""
    for name in re.findall(r"`((?:locks|queue|contrib|conf|zk|testing)\.[a-z_.]+)`", ARCHITECTURE):
        import_module(f"django_zklock.{name}")
