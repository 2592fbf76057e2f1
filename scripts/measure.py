"""
Measure the size and the structure of the code. `make measure` is this script.

    scripts/measure.py              lines, modules and names, in a few seconds
    scripts/measure.py --trace      also trace a lock, a Celery task and the admin's list on the dev server
    scripts/measure.py --privates   also list each use of another object's private attribute
"""

from __future__ import annotations

import argparse
import ast
import itertools
import os
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import django
from celery import Celery

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "django_zklock"
SERVER = PACKAGE / "testing" / "server"
RUNS = 5  # of each traced path
GENERATED = PACKAGE / "contrib" / "leases" / "v1"


def sources() -> list[Path]:
    """Return the modules of the package. The dev server does not count, except in the line that names it."""
    return [path for path in sorted(PACKAGE.rglob("*.py")) if not {SERVER, GENERATED} & set(path.parents)]


@cache
def nodes_of(path: Path) -> list[ast.AST]:
    """Return all nodes of a module's syntax tree."""
    return list(ast.walk(ast.parse(path.read_text())))


def line_count(folder: Path) -> int:
    """Return the number of lines of Python in a folder, without generated ones."""
    return sum(len(path.read_text().splitlines()) for path in folder.rglob("*.py") if GENERATED not in path.parents)


def fullest_folder() -> str:
    """Return the folder with the most modules."""
    folders = Counter(path.parent for path in PACKAGE.rglob("*.py") if path.name != "__init__.py")
    ((folder, count),) = folders.most_common(1)
    return f"{count} ({folder.relative_to(ROOT)})"


def long_lines() -> int:
    """Return how many lines of the documentation are too long."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    return sum(len(line) > 140 for page in pages for line in page.read_text().splitlines())


def untyped_callbacks() -> int:
    """Return how many functions take a reply of ZooKeeper that has no type."""
    return sum(len(re.findall(r"\b(?:answer|reply): Any\b", path.read_text())) for path in sources())


def private_names() -> set[str]:
    """Return the names with one leading underscore that the package defines."""
    names = set()
    for node in (node for path in sources() for node in nodes_of(path)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Store):
            names.add(ast.unparse(node).rpartition(".")[2])
    return {name for name in names if name.startswith("_") and not name.startswith("__")}


def foreign_privates() -> list[str]:
    """Return where private names of this package are used on anything other than `self` and `cls`."""
    names = private_names() - {"_meta"}  # that is public in Django
    own = {"self", "cls", "super()", "type(self)"}
    return [
        f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)}"
        for path in sources()
        for node in nodes_of(path)
        if isinstance(node, ast.Attribute) and node.attr in names and ast.unparse(node.value) not in own
    ]


def is_of_types(node: ast.AST) -> bool:
    """Return whether only type checkers see this part of a module."""
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING" and not node.orelse


def import_graph() -> dict[str, set[str]]:
    """Return which modules each module imports, also in functions. What only types need is no arrow."""
    names = {path: ".".join(path.relative_to(ROOT).with_suffix("").parts) for path in sources()}
    names = {path: name.removesuffix(".__init__") for path, name in names.items()}
    graph: dict[str, set[str]] = {name: set() for name in names.values()}
    for path, name in names.items():
        of_types = {part for node in nodes_of(path) if is_of_types(node) for part in ast.walk(node)}
        for node in nodes_of(path):
            if node in of_types:
                continue
            if isinstance(node, ast.ImportFrom) and node.module:
                members = [f"{node.module}.{alias.name}" for alias in node.names]
                graph[name] |= {member if member in graph else node.module for member in members} & graph.keys()
            elif isinstance(node, ast.Import):
                graph[name] |= {alias.name for alias in node.names} & graph.keys()
    return graph


def largest_cycle() -> int:
    """Return the size of the largest set of modules that all import each other, directly or through others."""
    reach = import_graph()
    for middle in reach:
        for name in reach:
            if middle in reach[name]:
                reach[name] |= reach[middle]
    return max(sum(name in reach[other] for other in reach[name]) for name in reach)


def measures() -> Iterator[tuple[str, object]]:
    """Return the lines of the table that need no run of the code."""
    yield "lines of the package without testing/server", line_count(PACKAGE) - line_count(SERVER)
    yield "lines of core", line_count(PACKAGE / "core")
    yield "lines of http and decorators", line_count(PACKAGE / "http") + line_count(PACKAGE / "decorators")
    yield "lines of testing/server", line_count(SERVER)
    yield "lines of tests", line_count(ROOT / "tests")
    yield "modules in the fullest folder, __init__ aside", fullest_folder()
    yield "modules in the largest cycle of imports", largest_cycle()
    yield "uses of another object's privates", len(foreign_privates())
    yield "callbacks whose reply has no type", untyped_callbacks()
    yield "lines over 140 characters in docs", long_lines()


class Trace:
    """Count the calls of the package's functions, in this thread and in all that start later."""

    def __init__(self) -> None:
        self._calls: list[CodeType] = []  # threads append to it
        self._recording = False
        threading.setprofile(self._on_event)
        sys.setprofile(self._on_event)
        # The threads of the package drop all tracers when they begin. They keep this one.
        sys.setprofile = self._ignore_drop

    @staticmethod
    def _ignore_drop(function: Any, set_profile: Callable[[Any], None] = sys.setprofile) -> None:
        if function is not None:
            set_profile(function)

    def _on_event(self, frame: FrameType, event: str, _argument: object) -> None:
        name = frame.f_code.co_filename
        if self._recording and event == "call" and name.startswith(str(PACKAGE)) and not name.startswith(str(SERVER)):
            self._calls.append(frame.f_code)

    def run(self, action: Callable[[], object], *, pause: float = 0.0) -> str:
        """
        Return for an action: calls, functions, modules, and calls that follow one of another module.

        Heartbeats and pings happen at any moment and only add calls. So it runs several times, `pause` seconds apart,
        and the run with the fewest calls counts.
        """
        runs: list[list[CodeType]] = []
        for _ in range(RUNS):
            time.sleep(pause)
            self._calls = []
            self._recording = True
            action()
            self._recording = False
            runs.append(self._calls)
        calls = min(runs, key=len)
        modules = [code.co_filename for code in calls]
        changes = sum(before != after for before, after in itertools.pairwise(modules))
        return f"{len(calls)} / {len(set(calls))} / {len(set(modules))} / {changes}"


def traces() -> Iterator[tuple[str, str]]:
    """Trace three paths on the dev server. Each runs once before, so that modules and the session are there."""
    trace = Trace()  # before the session's threads start
    sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
    os.environ["DJANGO_SETTINGS_MODULE"] = "settings"
    django.setup()
    from django.contrib.auth.models import User  # noqa: PLC0415
    from django.core.management import call_command  # noqa: PLC0415
    from django.test import Client, override_settings  # noqa: PLC0415
    from support import adminsite  # noqa: PLC0415

    from django_zklock import zk_lock, zk_locked  # noqa: PLC0415
    from django_zklock.testing import DevServer, LockTester  # noqa: PLC0415

    def lock() -> None:
        with zk_lock("k"):
            pass

    def work(number: int) -> None:
        pass

    task = Celery(broker="memory://").task(zk_locked("task/{number}")(work))
    with override_settings(**adminsite.SETTINGS):
        with DevServer() as server, LockTester(server):
            lock()
            yield 'with zk_lock("k"), its directory exists', trace.run(lock)
            numbers = itertools.count()
            task.apply((next(numbers),))
            yield "Celery task with defaults, lock free", trace.run(lambda: task.apply((next(numbers),)))
        call_command("migrate", verbosity=0)
        client = Client()
        client.force_login(User.objects.create_superuser("root"))
        # A server of its own: the one above deletes the directories of free locks at any moment, and a scan lists them.
        with DevServer() as server, LockTester(server) as zklock, zklock.busy_by("shown"):
            client.get("/admin/zklock/lock/")
            # A request within a second of the last one would share its snapshot.
            yield "admin list page, one lock", trace.run(lambda: client.get("/admin/zklock/lock/"), pause=1.2)


def main(arguments: list[str]) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    trace_help = "calls / functions / modules / changes of module of three paths"
    parser.add_argument("--trace", action="store_true", help=trace_help)
    parser.add_argument("--privates", action="store_true", help="list the uses of another object's privates")
    options = parser.parse_args(arguments)
    rows = [*measures(), *(traces() if options.trace else ())]
    text = [f"{name:<46}{value}" for name, value in rows] + (foreign_privates() if options.privates else [])
    sys.stdout.write("\n".join(text) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
