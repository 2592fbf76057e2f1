"""The targets of the Makefile call what exists: programs, modules, scripts, files and groups of packages."""

from __future__ import annotations

import configparser
import functools
import importlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from importlib.machinery import ModuleSpec, PathFinder
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

toml: Any = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")  # pytest needs it, too

ROOT = Path(__file__).resolve().parents[3]
MAKEFILE = (ROOT / "Makefile").read_text()
TARGETS = " ".join(re.findall(r"^\.PHONY:(.*)$", MAKEFILE, re.MULTILINE)).split()
CONDITIONS = sorted({f"{name}=1" for name in re.findall(r"\$\(if \$\((\w+)\)", MAKEFILE)})
BOTH_WAYS = pytest.mark.parametrize("variables", [[], CONDITIONS], ids=["plain", "variables"])
MADE = [ROOT / line.strip("/") for line in (ROOT / ".gitignore").read_text().split()]
NO_INPUT = {"echo", "mkdir", "rm", "touch"}  # the files that they name need not exist


def test_each_named_target_is_phony() -> None:
    """So the tests below try it."""
    assert set(TARGETS) == set(re.findall(r"^([a-z][a-z-]*):", MAKEFILE, re.MULTILINE))


@BOTH_WAYS
@pytest.mark.parametrize("target", TARGETS)
def test_a_target_finds_what_it_calls(target: str, variables: list[str]) -> None:
    """Each command can start, and what the target installs brings the program or module that it runs."""
    calls = Commands()
    for where, command in commands(target, variables):
        calls.check(command, where)


def test_the_programs_of_the_targets_can_be_imported() -> None:
    """All that our own modules and scripts import at their start is there, too."""
    calls = Commands()
    for target in TARGETS:
        for where, command in commands(target, CONDITIONS):
            calls.check(command, where)
    assert len(calls.ours) > 10
    code = """
import importlib, json, runpy, sys, traceback
usual, failed = sys.path[1:], []
for path, name in json.loads(sys.argv[1]):
    sys.path[:] = [*path, *usual]
    try:
        runpy.run_path(name, run_name="imported") if name.endswith(".py") else importlib.import_module(name)
    except BaseException:
        failed.append(name + ": " + traceback.format_exc())
print(*failed, sep="\\n")
sys.exit(bool(failed))
"""
    arguments = json.dumps([[path, name] for *path, name in sorted(calls.ours)])
    done = subprocess.run(
        [sys.executable, "-c", code, arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def commands(target: str, variables: list[str]) -> Iterator[tuple[Path, list[str]]]:
    """Yield the words of each command of a target on a new machine, and the directory in which it runs."""
    make = ["make", "--dry-run", "--always-make", "--no-print-directory", target, *variables]
    env = {"PATH": os.environ["PATH"]}  # not the variables of the `make` that runs this test
    done = subprocess.run(make, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for line in done.stdout.replace("\\\n", " ").splitlines():
        where = ROOT
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        for is_operator, words in groupby(lexer, lambda word: word in ("&&", ";")):
            command = list(words)
            if command[0] == "cd":
                where /= command[1]
                assert where.is_dir(), line
            elif not is_operator:
                yield where, command


class Commands:
    """The commands of a target, which are checked one after the other."""

    def __init__(self) -> None:
        self.brought: dict[Path, set[str]] = {}  # by virtual environment: the distributions that pip was asked for
        self.ours: set[tuple[str, ...]] = set()  # path, and the module or file that runs

    def check(self, command: list[str], where: Path) -> None:
        path = []
        while "=" in command[0]:
            name, _, value = command.pop(0).partition("=")
            path += value.split(os.pathsep) if name == "PYTHONPATH" else []
        program, *arguments = command
        venv = (where / program).parent.parent if "/" in program else None
        assert venv in self.brought or (venv is None and shutil.which(program)), f"there is no {program}"
        if Path(program).name.startswith("python"):
            arguments = self._check_python(arguments, where, path, venv)
        elif venv:
            self._check_brought(Path(program).name, venv)
        for argument in () if program in NO_INPUT else arguments:
            file = where / argument.rpartition("=")[2]
            if "/" in argument and not any(file.is_relative_to(made) for made in MADE):
                assert file.exists(), f"there is no {argument}"

    def _check_python(self, arguments: list[str], where: Path, path: list[str], venv: Path | None) -> list[str]:
        """Check the module or script that runs; return the arguments that may be files."""
        if arguments[0] != "-m":
            script = where / arguments[0]
            self._check_ours(script, (str(script.parent), *path, str(script)))
            return arguments[1:]
        _, module, *arguments = arguments
        if module == "venv":
            self.brought[where / arguments[0]] = {"pip"}
            return []
        assert venv is not None, f"{module} must run in a virtual environment"
        if module == "pip":
            self.brought[venv] |= set(asked_for(arguments, where))
            return []
        spec = find(module, [str(where), *path])
        if spec is not None:
            name = f"{module}.__main__" if spec.name == "__main__" else module
            self._check_ours(Path(str(spec.origin)), (str(where), *path, name))
        else:
            self._check_brought(module, venv)
            find(module, sys.path)
        return arguments

    def _check_ours(self, file: Path, ran: tuple[str, ...]) -> None:
        assert file.exists(), f"there is no {file}"
        assert '\nif __name__ == "__main__"' in file.read_text(), f"{file} does nothing when it is run"
        self.ours.add(ran)

    def _check_brought(self, name: str, venv: Path) -> None:
        """Check that a program or module comes with one of the distributions that the target has installed."""
        assert any(may_bring(distribution, name) for distribution in self.brought[venv]), f"nothing brings {name}"


def find(module: str, path: list[str]) -> ModuleSpec | None:
    """Find what `python -m` would run on a path, as it does, but import nothing."""
    spec, places = None, path
    for part in module.split("."):
        spec = PathFinder.find_spec(part, places)
        if spec is None:
            return None
        places = list(spec.submodule_search_locations or ())
    if places:
        spec = PathFinder.find_spec("__main__", places)
        assert spec is not None, f"the package {module} has no __main__"
    return spec


def asked_for(arguments: list[str], where: Path) -> Iterator[str]:
    """Yield the distributions that a call of pip names."""
    assert arguments[0] == "install"
    before = ""
    for argument in arguments[1:]:
        if before == "--group":
            yield from group(argument)
        elif before == "--editable":
            directory, _, extras = argument.rstrip("]").partition("[")
            yield from project(where / directory, extras.split(",") if extras else [])
        elif not argument.startswith("-"):
            yield name_of(argument)
        before = argument


def group(name: str) -> Iterator[str]:
    """Yield the distributions of a group of `pyproject.toml`."""
    for entry in toml.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"][name]:
        if isinstance(entry, str):
            yield name_of(entry)
        else:
            yield from group(entry["include-group"])


def project(directory: Path, extras: list[str]) -> Iterator[str]:
    """Yield a distribution of this repository, and those that it needs."""
    about = toml.loads((directory / "pyproject.toml").read_text()).get("project")
    if about is not None:
        assert not extras
        yield about["name"]
        yield from map(name_of, about["dependencies"])
    else:
        setup = configparser.ConfigParser()
        setup.read(directory / "setup.cfg")
        yield setup["metadata"]["name"]
        for lines in (
            setup["options"]["install_requires"],
            *(setup["options.extras_require"][name] for name in extras),
        ):
            yield from map(name_of, lines.split())


def name_of(requirement: str) -> str:
    return re.split(r"[^\w.-]", requirement)[0].lower().replace("_", "-")


@functools.cache
def brought_by(distribution: str) -> set[str] | None:
    """Return the programs and modules of a distribution; None if it is not installed here."""
    try:
        installed = metadata.distribution(distribution)
    except metadata.PackageNotFoundError:
        return None
    scripts = {entry.name for entry in installed.entry_points if entry.group == "console_scripts"}
    return scripts | {part for file in installed.files or () for part in (file.parts[0], file.name, file.stem)}


def may_bring(distribution: str, name: str) -> bool:
    """Return whether a distribution has a program or module, as far as can be told here."""
    brought = brought_by(distribution)
    if brought is not None:
        return name in brought
    return any(word.startswith(part) for word in name.split("-") for part in distribution.split("-"))
