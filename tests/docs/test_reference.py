"""`reference/locks.md` names all that the API has, and `explanation/architecture.md` only what the code has."""

import ast
import re
from importlib import import_module
from pathlib import Path

import pytest
from django.dispatch import Signal
from support.docs import run, text_of

import django_zklock
from django_zklock import exceptions, signals, zk_lock
from django_zklock.conf import arguments
from django_zklock.conf.arguments import OPTIONS
from django_zklock.core.protocol.registry import PATH_EXTRA
from django_zklock.core.queue import nodes
from django_zklock.core.zk.options import SessionOptions

LOCKS = text_of("reference/locks.md")
ARCHITECTURE = text_of("explanation/architecture.md")
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


def made_from_docstrings(text):
    return set(re.findall(r"^\.\. auto\w+:: (?:\w+\.)*(\w+)", text, flags=re.MULTILINE))


def test_every_public_name_is_in_the_reference():
    assert set(django_zklock.__all__) <= named(LOCKS)


PAGES = {
    "": "reference/locks.md",
    "admin": "how-to/admin.md",
    "contrib.celery": "reference/settings.md",
    "contrib.metrics": "how-to/observe.md",
    "contrib.otel": "how-to/observe.md",
    "contrib.tokens": "reference/fencing.md",
    "contrib.tokens.stores": "reference/fencing.md",
    "exceptions": "reference/exceptions.md",
    "fencing": "reference/fencing.md",
    "inspection": "reference/inspection.md",
    "operations": "reference/inspection.md",
    "testing": "reference/testing.md",
    "testing.server": "reference/testing.md",
    "testing.tester": "reference/testing.md",
}
"""The page that explains the names of each public module, in words or from their docstrings."""


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
    page = text_of(PAGES[module])
    assert EXPORTED[module] - named(page) - made_from_docstrings(page) == set()


def test_every_exception_is_on_its_page_with_the_builtin_that_it_is():
    page = text_of("reference/exceptions.md")
    for name, kind in vars(exceptions).items():
        if isinstance(kind, type) and issubclass(kind, BaseException) and kind.__module__ == exceptions.__name__:
            builtins = [base.__name__ for base in kind.__bases__ if base.__module__ == "builtins"]
            named_base = re.search(rf"\*\*`{name}`\*\*(?: \(an? `(\w+)`\))?", page)
            if kind is not exceptions.ZkLockError:
                assert named_base is not None, name
                assert [base for base in named_base.groups() if base] == builtins, name


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
    explained = " ".join(re.findall(r"^<!-- from the code: options (.*) -->$", SETTINGS, flags=re.MULTILINE))
    assert sorted(OPTIONS) == sorted(explained.split())


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


@pytest.mark.parametrize("page", ["explanation/scale.md", "how-to/lock-coordinator.md"])
def test_the_number_of_locks_of_a_process_is_computed_by_the_code(page):
    """To a thousand, for keys of 60 characters below the chroot of the examples."""
    path = f"/myproject/zklock/{'k' * 60}/{nodes.prefix(nodes.new_guid(nodes.Mark.OWN))}0000000000"
    most = SessionOptions(hosts=()).jute_maxbuffer // (len(path) + PATH_EXTRA)
    ((said,),) = [re.findall(r"about ([\d,]+) with keys of\s+60 characters", text_of(page))]
    assert int(said.replace(",", "")) == most // 1000 * 1000


def test_every_signal_is_on_its_page():
    """The page is made from the docstring of the module."""
    explained = re.findall(r"^`(\w+)\(", str(signals.__doc__), flags=re.MULTILINE)
    assert sorted(explained) == sorted(name for name, value in vars(signals).items() if isinstance(value, Signal))


def test_the_example_of_signals_counts_grants_by_kind(zklock):
    (code,) = re.findall(r"```python\n(.*?)```", SIGNALS, flags=re.DOTALL)
    names = run(code)
    with zk_lock("a", kind="read"), zk_lock("b", limit=2):
        pass
    zklock.eventually(lambda: names["granted"] == {"read": 1, "semaphore": 1})


def test_the_classes_and_modules_of_the_architecture_exist():
    for module, name in re.findall(r"`((?:[a-z_]+\.)*[a-z_]+)\.([A-Z]\w+)`", ARCHITECTURE):
        assert hasattr(import_module(f"django_zklock.{module}"), name), name
    for module in re.findall(r"`((?:core|locks|contrib|conf|testing)\.[a-z_.]+)`", ARCHITECTURE):
        import_module(f"django_zklock.{module}")


def shown(seconds):
    return f"{seconds:.1f}".removesuffix(".0")
