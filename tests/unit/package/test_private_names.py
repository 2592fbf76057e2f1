"""
The private names of other libraries that the package uses. Each is used in one file, and was looked up.

Those of kazoo are used in `core/zk` only; `contract/zk/test_kazoo_surface.py` has them.
"""

import ast
import inspect
import re
from collections import defaultdict
from importlib import import_module
from pathlib import Path

import pytest

import django_zklock

PACKAGE = Path(django_zklock.__file__).parent
PUBLIC = {"_meta", "_asdict", "_replace", "_make", "_default_manager", "_base_manager"}
"""Names with an underscore that their libraries document."""
KNOWN = {
    # asgiref 3.8 to 3.13
    "_connections": ("locks/transactions.py", "django.utils.connection"),
    # Celery 5.5 to 5.7, kombu 5.7
    "_limit_task": ("contrib/celery/dispatch/dispatcher.py", "celery.worker.consumer.consumer"),
    "_live_receivers": ("contrib/celery/beat.py", "celery.utils.dispatch.signal"),
    "_new_queue": ("contrib/celery/dispatch/dispatcher.py", "kombu.transport.virtual.base"),
    "_state": ("contrib/celery/introspection.py", "celery"),
    "_task_stack": ("contrib/celery/introspection.py", "celery._state"),
    "_get_active_apps": ("contrib/celery/introspection.py", "celery._state"),
    "_do_sync": ("contrib/celery/beat.py", "celery.beat"),
    "_default_now": ("contrib/celery/schedule.py", "celery.beat"),
    "_apply_result": ("contrib/celery/control.py", "celery.worker.request"),
    "_busy_workers": ("contrib/celery/dispatch/pool_slots.py", "celery.concurrency.asynpool"),
    # kombu 5.5 to 5.7
    "_active_tags": ("contrib/celery/messages.py", "kombu.messaging"),
    "_lookup": ("contrib/celery/messages.py", "kombu.transport.virtual.base"),
    "_raw": ("contrib/celery/messages.py", "kombu.transport.virtual.base"),
    # Django 5.2 to 6.1
    "_from_testcase": ("locks/transactions.py", "django.db.transaction"),
    "_resource_closers": ("decorators/validation.py", "django.http.response"),
    "_TestState": ("apps.py", "django.test.utils"),
    "_wrapped": ("names/field_values.py", "django.utils.functional"),
    # Django REST framework 3.15 to 3.18
    "_request": ("http/requests.py", "rest_framework.request"),
    # Python 3.11 to 3.15
    "_GeneratorContextManagerBase": ("decorators/validation.py", "contextlib"),
    "_actions": ("management/commands/zklock.py", "argparse"),
    "_active": ("core/fork.py", "threading"),
    "_get_running_loop": ("core/execution/owner.py", "asyncio.events"),
}
"""The file that uses a name, and the module of the library that has it."""


def modules():
    """Return the modules of the package by path, without those that a compiler has written."""
    paths = [path for path in PACKAGE.rglob("*.py") if path.parent.name != "v1"]
    return {str(path.relative_to(PACKAGE)): ast.parse(path.read_text()) for path in paths}


def own_names(trees):
    """Return what the package itself defines."""
    names = set()
    for node in (node for tree in trees.values() for node in ast.walk(tree)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Store):
            names.add(ast.unparse(node).rpartition(".")[2])
    return names


def used_names(node):
    """Return the names of attributes that a node reads, and of modules and members that it imports."""
    if isinstance(node, ast.Attribute):
        return [] if ast.unparse(node.value) == "sys" else [node.attr]  # those of `sys` are documented
    if isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "hasattr", "setattr"):
        return [str(node.args[1].value)] if isinstance(node.args[1], ast.Constant) else []
    if isinstance(node, ast.ImportFrom) and not (node.module or "").startswith(("django_zklock", "__")):
        return [*(node.module or "").split("."), *(alias.name for alias in node.names)]
    return []


def test_each_private_name_of_others_is_known_and_used_in_one_file():
    """A name that the package defines, too, counts as its own."""
    trees = modules()
    own = own_names(trees)
    files = defaultdict(set)
    for path, tree in trees.items():
        if path.startswith("core/zk/"):
            continue
        for name in (name for node in ast.walk(tree) for name in used_names(node)):
            if re.match("_[A-Za-z]", name) and name not in own | PUBLIC:
                files[name].add(path)
    assert files.keys() - KNOWN.keys() == set(), "use a public name, or add it with the versions of the library"
    assert {name: paths for name, paths in files.items() if paths != {KNOWN[name][0]}} == {}


@pytest.mark.parametrize("name", sorted(KNOWN))
def test_the_library_still_has_the_name(name):
    module = import_module(KNOWN[name][1])
    assert hasattr(module, name) or re.search(rf"\b{name}\b", inspect.getsource(module))
