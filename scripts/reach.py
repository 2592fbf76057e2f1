"""
Record which tests reach which block of the package.

In a copy of the tree, each block of a function begins with a call that writes down its file, its line and the test.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

RECORDER = """
import os
pytest = 0
seen = set()

def reached(block):
    test = os.environ.get("PYTEST_CURRENT_TEST", "")
    if (block, test) not in seen:
        seen.add((block, test))
        file = os.open({log!r}, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        os.write(file, f"{{block}}\\t{{int(os.getpid() == pytest)}}\\t{{test}}\\n".encode())
        os.close(file)
"""
PLUGIN = """
import os
import {package}.reached

def pytest_configure():
    {package}.reached.pytest = os.getpid()
"""


class Recorder:
    """
    A copy of the tree whose package records what reaches it, with the plugin `reached` for its tests.

    Programs that a fixture starts may serve other tests, too: what they reach counts for all tests of the folder.
    """

    def __init__(self, root: Path, package: str) -> None:
        self._root, self._package = root, package
        self._log = root.parent / "reached.txt"
        for file in (root / package).rglob("*.py"):
            tree = ast.parse(file.read_text())
            for block in blocks(tree):
                name = f"{file.relative_to(root)}:{block[0].lineno}"
                call = ast.parse(f"__import__('{package}.reached').reached.reached('{name}')").body
                first = isinstance(block[0], ast.Expr) and isinstance(block[0].value, ast.Constant)  # a docstring
                block[first:first] = call
            file.write_text(ast.unparse(tree))
        (root / package / "reached.py").write_text(RECORDER.format(log=str(self._log)))
        (root / "reached.py").write_text(PLUGIN.format(package=package))

    def read(self) -> dict[str, set[str]]:
        """Return the tests that reach each block, and each file, by its name."""
        tests: dict[str, set[str]] = defaultdict(set)
        shared: dict[str, set[str]] = defaultdict(set)
        folders: dict[str, set[str]] = defaultdict(set)
        for line in set(self._log.read_text().splitlines()):
            block, of_pytest, current = line.split("\t", 2)
            if test := re.match(r"(tests/(?:.*/)?)[^/]*\.py::.*(?= \((setup|call|teardown)\)$)", current):
                folders[test[1]].add(test[0])
                tests[block].add(test[0])
                if test[2] == "setup" and of_pytest == "0":
                    shared[block].add(test[1])
        for block, names in shared.items():
            tests[block].update(*(folders[name] for name in names))
        for block in list(tests):
            tests[block.split(":")[0]] |= tests[block]
        return tests


def block_of(path: Path, line: int) -> int:
    """Return the first line of the innermost block of a function that this line is in; 0 if there is none."""
    lines = [(block[0].lineno, block[-1].end_lineno or 0) for block in blocks(ast.parse(path.read_text()))]
    around = [(last - first, first) for first, last in lines if first <= line <= last]
    return min(around, default=(0, 0))[1]


def blocks(tree: ast.AST) -> Iterable[list[ast.stmt]]:
    """Return the blocks of all functions."""
    functions = [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    parts = [
        vars(node).get(name) for f in functions for node in ast.walk(f) for name in ("body", "orelse", "finalbody")
    ]
    return {id(part): part for part in parts if part and isinstance(part, list)}.values()
