"""`reference/locks.md` names all that the API has, and `explanation/architecture.md` only what the code has."""

import ast
import configparser
import re
from importlib import import_module
from pathlib import Path

import pytest
from django.dispatch import Signal
from prometheus_client import CollectorRegistry
from support.docs import DOCS, run, text_of

import django_zklock
from django_zklock import conf, exceptions, signals, zk_lock
from django_zklock.conf import arguments
from django_zklock.conf import settings as read_settings
from django_zklock.conf.arguments import OPTIONS
from django_zklock.contrib.leases.options import LeaseClient, LeaseOptions
from django_zklock.contrib.metrics import connect, disconnect
from django_zklock.core.protocol.registry import PATH_EXTRA
from django_zklock.core.queue import nodes
from django_zklock.core.zk.lease import BEAT_SHARE, LEASE_SHARE
from django_zklock.core.zk.options import SessionOptions
from django_zklock.inspection import ConnectionInfo, LockInfo, ScannedContender, Snapshot, Wait, info
from django_zklock.locks.multi import MultiHold, MultiLock

LOCKS = text_of("reference/locks.md")
ARCHITECTURE = text_of("explanation/architecture.md")
INSPECTION = text_of("reference/inspection.md")
SETTINGS = text_of("reference/settings.md")
SIGNALS = text_of("reference/signals.md")
COLUMNS = {
    "zk_lock": arguments.LockArguments,
    "zk_read": arguments.SideArguments,
    "zk_leader": arguments.LeaderArguments,
    "zk_locked": arguments.LockedOptions,
}
"""The options of each call."""


def section(heading):
    """Return the text below a heading, up to the next one of any level."""
    return re.split(r"^#+ ", LOCKS.partition(f"# {heading}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]


def named(text):
    return set(re.findall(r"`@?(\w+)[`(]", text))


def test_every_public_name_is_in_the_reference():
    assert set(django_zklock.__all__) <= named(LOCKS)


PAGES = {
    "": ("locks",),
    "admin": ("admin",),
    "contrib.celery": ("settings",),
    "contrib.metrics": ("metrics",),
    "contrib.otel": ("metrics",),
    "contrib.tokens": ("fencing",),
    "contrib.tokens.stores": ("fencing",),
    "exceptions": ("exceptions",),
    "fencing": ("fencing",),
    "inspection": ("inspection",),
    "operations": ("operations",),
    "testing": ("testing",),
    "testing.server": ("testing",),
    "testing.tester": ("testing",),
}
"""The pages that explain the names of each public module. The API page has those that they leave out."""
MADE_FROM_DOCSTRINGS = set(re.findall(r"^\.\. auto\w+:: (\w+)", text_of("reference/api.md"), flags=re.MULTILINE))


PACKAGE = Path(django_zklock.__file__).parent
INTERNAL = {"conf", "report.lazy", "names.template"}
"""Modules whose `__all__` is for this package alone."""


def exports():
    modules = {}
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text()
        for node in ast.parse(text).body if "__all__" in text else ():
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                parts = path.relative_to(PACKAGE).with_suffix("").parts
                modules[".".join(part for part in parts if part != "__init__")] = set(ast.literal_eval(node.value))
    return modules


EXPORTED = exports()


def test_every_module_that_exports_names_has_a_page():
    assert set(EXPORTED) == {*PAGES, *INTERNAL}


@pytest.mark.parametrize("module", sorted(PAGES))
def test_every_exported_name_is_on_its_page(module):
    explained = set().union(*(named(text_of(f"reference/{page}.md")) for page in PAGES[module]))
    assert EXPORTED[module] - explained - MADE_FROM_DOCSTRINGS == set()


def test_every_exception_is_on_its_page_with_the_builtin_that_it_is():
    page = text_of("reference/exceptions.md")
    for name, kind in vars(exceptions).items():
        if isinstance(kind, type) and issubclass(kind, BaseException) and kind.__module__ == exceptions.__name__:
            builtins = [base.__name__ for base in kind.__bases__ if base.__module__ == "builtins"]
            named_base = re.search(rf"\*\*`{name}`\*\*(?: \(an? `(\w+)`\))?", page)
            if kind is not exceptions.ZkLockError:
                assert named_base is not None, name
                assert [base for base in named_base.groups() if base] == builtins, name


@pytest.mark.parametrize("name", ["Lock", "MultiLock", "ReadWriteLock", "Hold", "MultiHold", "Leader"])
def test_every_public_attribute_is_in_the_section_of_its_class(name):
    kind = {"MultiLock": MultiLock, "MultiHold": MultiHold}.get(name) or getattr(django_zklock, name)
    public = {attribute for attribute in dir(kind) if not attribute.startswith("_")}
    if name in ("Lock", "ReadWriteLock", "Leader"):
        public.add("name")
    of_base = named(section("`Lock`")) if name == "Leader" else set()  # the section says that it is one
    assert public - of_base - named(section(f"`{name}`")) == set()


@pytest.mark.parametrize("kind", [ConnectionInfo, LockInfo, ScannedContender, Snapshot, Wait])
def test_every_field_of_the_values_is_named(kind):
    """Inspection and operations return these values; the page of inspection describes them."""
    assert set(kind.__dataclass_fields__) <= named(INSPECTION)


@pytest.mark.parametrize("call", COLUMNS)
def test_the_table_of_options_is_that_of_the_code(call):
    text = section("Options")
    ((common,),) = [re.findall(r"Every call takes (.*?)\. In addition", " ".join(text.split()))]
    options = named(common)
    for calls, row in re.findall(r"^\| (.*?) \| (`.*?) \|$", text, flags=re.MULTILINE):
        if (call in named(calls)) != calls.startswith("all but"):
            options |= named(row)
    of_blocks = {"on_conflict"} if call in ("zk_lock", "zk_read") else set()
    assert options == {*COLUMNS[call].__annotations__} | of_blocks


def test_the_settings_explain_every_option_that_they_can_have():
    explained = re.findall(r"^\* \*\*`(\w+)`\*\*", SETTINGS, flags=re.MULTILINE)
    assert set(OPTIONS) <= set(explained)


def test_the_settings_say_which_options_may_be_none():
    (said,) = re.findall(r"it is a value of\s+(.*?)\. For all others", SETTINGS, re.DOTALL)
    valid = {name for name in OPTIONS if not conf.problems({"URL": "zk://zk1/shop", "DEFAULTS": {name: None}})}
    assert valid == set(re.findall(r"`(\w+)`", said))


def test_the_list_of_checks_is_that_of_the_code():
    sources = [
        *PACKAGE.glob("conf/*.py"),
        PACKAGE / "checks.py",
        PACKAGE / "fencing/model.py",
        PACKAGE / "contrib/leases/options.py",
        PACKAGE / "contrib/tokens/keys.py",
    ]
    ids = {code for path in sources for code in re.findall(r'"(?:zklock\.)?([EW]\d{3})"', path.read_text())}
    rows = re.findall(r"^\* \*\*([EW]\d{3})\*\*: \w", SETTINGS.replace("`", ""), flags=re.MULTILINE)
    assert rows == sorted(ids)


BOUNDS = re.findall(r"^\| ([`\w, ]+) \| (above 0|\d+) \| (none|\d+)[^|]*\|$", SETTINGS, flags=re.MULTILINE)


OF_LEASES = ("MAX_TERM", "MAX_WAIT")
OF_CLIENTS = ("MAX_LEASES", "MAX_WAITING", "MAX_RATE")


def placed(key, value):
    client = {"TOKENS": ["0" * 64]}
    settings = {"URL": "zk://zk1/shop", "DEFAULTS": {}, "LEASES": {"CLIENTS": {"billing": client}}}
    if key in OPTIONS:
        settings["DEFAULTS"][key] = value
    elif key in OF_LEASES:
        settings["LEASES"][key] = value
    else:
        (client if key in OF_CLIENTS else settings)[key] = value
    return settings


@pytest.mark.parametrize(
    ("key", "least", "most"),
    [(key, least, most) for keys, least, most in BOUNDS for key in re.findall(r"`(\w+)`", keys) if key != "LEASES"],
)
def test_the_bounds_of_values_are_those_of_the_validator(key, least, most):
    smallest = 0.001 if least == "above 0" else int(least)
    assert conf.problems(placed(key, smallest)) == []
    assert conf.problems(placed(key, 0 if least == "above 0" else smallest - 1))
    greatest = 10**12 if most == "none" else int(most)
    assert conf.problems(placed(key, greatest)) == []
    assert most == "none" or conf.problems(placed(key, greatest + 1))


def test_every_bounded_value_is_in_the_table_of_bounds():
    keys = {*OPTIONS, *read_settings._KEYS, *OF_LEASES, *OF_CLIENTS}
    numbers = {key for key in keys if not conf.problems(placed(key, 5)) and conf.problems(placed(key, -1))}
    assert numbers == {key for row in BOUNDS for key in re.findall(r"`(\w+)`", row[0])} - {"LEASES"}


def test_the_defaults_of_the_settings_are_those_of_the_code():
    config = read_settings._read({"URL": "zk://zk1"})[0]
    client = LeaseClient(name="billing")
    coded = {
        **{name: getattr(config, name) for name in config.__dataclass_fields__},
        **{name.lower(): getattr(LeaseOptions(), name.lower()) for name in OF_LEASES},
        **{name.lower(): getattr(client, name.lower()) for name in OF_CLIENTS},
        "root": config.base,
    }
    rows = re.findall(r"`([A-Z_]+)`(?:\*\* \([^)]*?| \| [^|]*?; )default `?([^`\s)|]+)", SETTINGS)
    shown_defaults = {name.lower(): value.strip('".').replace(",", "") for name, value in rows}
    assert {"root", "session_timeout", "strict", "max_rate", "event_days"} <= set(shown_defaults)
    for name in set(shown_defaults) & set(coded):
        value = coded[name]
        if isinstance(value, (bool, int, float, str)):
            assert shown_defaults[name] == (value if isinstance(value, str) else f"{value}".removesuffix(".0")), name


@pytest.mark.parametrize("page", ["explanation/scale.md", "how-to/lock-coordinator.md"])
def test_the_number_of_locks_of_a_process_is_computed_by_the_code(page):
    """To a thousand, for keys of 60 characters below the chroot of the examples."""
    path = f"/myproject/zklock/{'k' * 60}/{nodes.prefix(nodes.new_guid(nodes.Mark.OWN))}0000000000"
    most = SessionOptions(hosts=()).jute_maxbuffer // (len(path) + PATH_EXTRA)
    ((said,),) = [re.findall(r"about ([\d,]+) with keys of\s+60 characters", text_of(page))]
    assert int(said.replace(",", "")) == most // 1000 * 1000


def test_every_field_of_the_json_is_named():
    written = {name for names in info.NAMES.values() for name in names}
    assert len(written) > 40
    assert written - named(text_of("reference/json.md")) == set()


def test_every_signal_is_on_its_page():
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*?) \|", SIGNALS, flags=re.MULTILINE))
    assert set(rows) == {name for name, value in vars(signals).items() if isinstance(value, Signal)}
    for name, arguments_of_signal in rows.items():
        assert f"`{name}({arguments_of_signal.replace('`', '')})`" in str(signals.__doc__)


def test_the_example_of_signals_counts_grants_by_kind(zklock):
    (code,) = re.findall(r"```python\n(.*?)```", SIGNALS, flags=re.DOTALL)
    names = run(code)
    with zk_lock("a", kind="read"), zk_lock("b", limit=2):
        pass
    zklock.eventually(lambda: names["granted"] == {"read": 1, "semaphore": 1})


def test_every_metric_is_in_the_table():
    registry = CollectorRegistry()
    connect(registry)
    metrics = [(metric.name, metric.type) for metric in registry.collect()]
    made = {f"{name}_total" if kind == "counter" else name: kind for name, kind in metrics}
    disconnect(registry)
    assert list(registry.collect()) == []
    shown = re.findall(r"^\| `(zklock_\w+)` \| (\w+) \|", text_of("reference/metrics.md"), flags=re.MULTILINE)
    assert dict(shown) == made


def test_the_picture_shows_the_layers_in_the_order_of_the_contract():
    settings = configparser.ConfigParser()
    settings.read(DOCS.parent / "setup.cfg")
    contracts = (settings[f"importlinter:contract:{name}"]["layers"] for name in ("layers", "core"))
    layers = [re.findall(r"\w+", line) for contract in contracts for line in contract.splitlines()]
    picture = re.findall(r"^ ((?:\w+, )*\w+)(?: {3,}|$)", ARCHITECTURE, flags=re.MULTILINE)
    assert [set(line.split(", ")) for line in picture] == [set(layer) for layer in layers if layer]


def test_the_classes_and_modules_of_the_architecture_exist():
    for module, name in re.findall(r"`((?:[a-z_]+\.)*[a-z_]+)\.([A-Z]\w+)`", ARCHITECTURE):
        assert hasattr(import_module(f"django_zklock.{module}"), name), name
    for module in re.findall(r"`((?:core|locks|contrib|conf|testing)\.[a-z_.]+)`", ARCHITECTURE):
        import_module(f"django_zklock.{module}")


PAGE = text_of("explanation/lease-and-abort.md")
TWO_TICKS = 2.0  # seconds, with the settings of the guide
ROWS = re.findall(r"^\| (\d+) +\|" + r" ([\d.]+) +\|" * 4, PAGE, flags=re.MULTILINE)


def shown(seconds):
    return f"{seconds:.1f}".removesuffix(".0")


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_the_table_of_session_timeouts_is_computed_by_the_code(row):
    timeout, *times = map(float, row)
    computed = (timeout + TWO_TICKS, LEASE_SHARE * timeout, (LEASE_SHARE - BEAT_SHARE) * timeout, BEAT_SHARE * timeout)
    assert list(map(shown, times)) == list(map(shown, computed))
