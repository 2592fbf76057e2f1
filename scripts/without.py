"""
Show that the rest of the package works without an extension.

`scripts/without.py NAME` copies the tree, deletes the extension, its tests and its line of registration, and runs
the unit and contract tests of the rest. An app that the project names in INSTALLED_APPS has no such line.
`scripts/without.py` alone does that for each extension.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
OPTIONS = ["-q", "-n", "auto", "--dist", "loadfile"]


@dataclass(frozen=True)
class Extension:
    """The folders and files to delete, and the lines of registration: pairs of a file and a text in it."""

    paths: tuple[str, ...]
    lines: tuple[tuple[str, str], ...] = ()


EXTENSIONS = {
    "celery": Extension(
        ("django_zklock/contrib/celery",),
        (
            ("django_zklock/apps.py", '"django_zklock.contrib.celery"'),
            ("tests/support/forked.py", '"django_zklock.contrib.celery.unique"'),
        ),
    ),
    "deadlocks": Extension(
        ("django_zklock/core/protocol/deadlock.py",),
        (
            ("django_zklock/core/locks/acquisition.py", "import DeadlockSearch"),
            ("django_zklock/core/locks/acquisition.py", "wait_watchers.append(DeadlockSearch)"),
        ),
    ),
    "events": Extension(
        ("django_zklock/contrib/events",), (("tests/settings.py", '"support.quietevents.QuietEvents"'),)
    ),
    "fences": Extension(("django_zklock/contrib/fences",), (("tests/settings.py", '"django_zklock.contrib.fences"'),)),
    "health_check": Extension(("django_zklock/contrib/health_check.py",)),
    "leases": Extension(
        ("django_zklock/contrib/leases",),
        (
            ("django_zklock/conf/__init__.py", 'add_key("LEASES"'),
            ("django_zklock/management/commands/zklock.py", '"serve": '),
        ),
    ),
    "metrics": Extension(("django_zklock/contrib/metrics",)),
    "otel": Extension(("django_zklock/contrib/otel",)),
    "tokens": Extension(("django_zklock/contrib/tokens",), (("tests/settings.py", '"django_zklock.contrib.tokens"'),)),
    "rest_framework": Extension(("django_zklock/contrib/rest_framework.py",)),
}


def copy(target: Path) -> None:
    """Copy the files that git knows or would add."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],  # noqa: S607
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)


def delete(root: Path, extension: Extension) -> None:
    """Delete the extension and its lines of registration, each of which must be there once."""
    for path in extension.paths:
        if (root / path).is_dir():
            shutil.rmtree(root / path)
        else:
            (root / path).unlink()
    for name, text in extension.lines:
        lines = (root / name).read_text().splitlines(keepends=True)
        rest = [line for line in lines if text not in line]
        if len(rest) != len(lines) - 1:
            raise SystemExit(f"{name} has {len(lines) - len(rest)} lines with {text}, not one.")
        (root / name).write_text("".join(rest))


def delete_tests(root: Path, extension: Extension) -> int:
    """Delete the tests that name the extension, or import what names it; return how many files these are."""
    tests = root / "tests"
    texts = {file: file.read_text() for file in tests.rglob("*.py")}
    names = [path.removeprefix("django_zklock/").removesuffix(".py").replace("/", "[./]") for path in extension.paths]
    names += [imported(Path(path).with_suffix("")) for path in extension.paths]
    deleted = 0
    while naming := [file for file in texts if re.search(rf"\b(?:{'|'.join(names)})\b", texts[file])]:
        for file in naming:
            del texts[file]
            file.unlink()
        names = [imported(file.relative_to(tests).with_suffix("")) for file in naming]
        deleted += len(naming)
    return deleted


def imported(module: Path) -> str:
    """Return a pattern of the imports of a module, whose path is relative to where its package is."""
    package = ".".join(module.parent.parts)
    return rf"from {package}\.{module.name} import|from {package} import [^\n]*\b{module.name}"


def passes_without(name: str) -> bool:
    """Run the tests of the rest in a copy; print the result in one line, and what fails."""
    with tempfile.TemporaryDirectory(prefix="without-") as folder:
        root = Path(folder)
        copy(root)
        delete(root, EXTENSIONS[name])
        deleted = delete_tests(root, EXTENSIONS[name])
        environment = os.environ | {"PYTHONPATH": os.pathsep.join((str(root), str(root / "clients/python")))}
        command = [sys.executable, "-m", "pytest", *OPTIONS, "tests/unit", "tests/contract"]
        run = subprocess.run(command, cwd=root, env=environment, check=False, capture_output=True, text=True)
    last = (run.stdout.strip().splitlines() or ["no output"])[-1]
    said = f"Without {name}: {last} ({deleted} files of tests are its own)\n"
    if run.returncode:
        said += run.stdout[-4000:] + run.stderr[-2000:]
    sys.stdout.write(said)
    sys.stdout.flush()
    return run.returncode == 0


def main() -> None:
    """Try the extensions that are named, or all."""
    names = sys.argv[1:] or list(EXTENSIONS)
    for name in names:
        if name not in EXTENSIONS:
            raise SystemExit(f"There is no extension {name!r}. Choose from: {', '.join(EXTENSIONS)}")
    failed = [name for name in names if not passes_without(name)]
    if failed:
        sys.exit(1)


if __name__ == "__main__":
    main()
