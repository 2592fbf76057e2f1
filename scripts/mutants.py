"""
Change one line of the package at a time, and list the changes that no test notices. `make mutants` is this script.

    scripts/mutants.py --count=40 --seed=7     draw forty mutants by that seed
    scripts/mutants.py django_zklock/fencing   only of these folders or files
    scripts/mutants.py --only=core/zk/lease.py:93    all mutants of that line

First, all tests of `make test` run once, and `reach.py` records which of them reach which block of the package. A
mutant is killed if the types are wrong with it, or if one of the tests that reach its block fails, twice, or does not
end in time; the quick tiers run first. `equivalent_mutants.txt` has the mutants that none of this can kill, with the
reason. The exit status is 1 if others survived.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import datetime
import itertools
import os
import queue
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import reach

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "django_zklock"
EQUIVALENT = Path(__file__).with_name("equivalent_mutants.txt")
LEFT_OUT = shutil.ignore_patterns(".*", "__pycache__", "_build", "*.egg-info", "node_modules")
ROOMS = ("core", "locks", "fencing", "contrib/celery")
TIERS = (("tests/unit/", "tests/model/"), ("tests/contract/",), ("tests/",))
"""How the names of tests begin, by tier. The tests of a tier run at once, the next ones only if none of them failed."""
SLOWEST = 900  # seconds for one tier

COMPARISONS = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in",  # codespell:ignore
}  # fmt: skip
ORDER = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
"""Comparisons that are not shifted if they are with the clock: the two differ at one nanosecond."""
SYMMETRIC = ("isinstance", "max", "min")
"""Calls whose two arguments are not exchanged: that is an error of types, or changes nothing."""
STATEMENTS = (ast.Assign, ast.AugAssign, ast.Raise, ast.Break, ast.Continue, ast.Delete)


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change: the bytes from `start` to `end` of a file become `after`."""

    path: str
    line: int
    start: int
    end: int
    before: str
    after: str

    @property
    def key(self) -> str:
        """The name of this mutant, on whichever line its code is."""
        return f"{self.path.removeprefix(f'{PACKAGE}/')}: {self.before} => {flat(self.after)}"

    def __str__(self) -> str:
        path, change = self.key.split(": ", 1)
        return f"{path}:{self.line}: {change}"


def mutants_of(path: str) -> Iterator[Mutant]:
    """Yield all mutants of a file."""
    source = (ROOT / path).read_bytes()
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for node, after in changes(ast.parse(source)):
        start = starts[node.lineno - 1] + node.col_offset
        end = starts[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)
        yield Mutant(path, node.lineno, start, end, flat(source[start:end].decode()), after)


def flat(code: str) -> str:
    """Return code on one line, without its comments."""
    with contextlib.suppress(SyntaxError):
        code = ast.unparse(ast.parse(code.strip()))
    return " ".join(code.split())


def changes(tree: ast.AST, within: bool = False) -> Iterator[tuple[ast.expr | ast.stmt, str]]:
    """Yield what can be replaced within functions, and the calls of modules, each with what replaces it."""
    for node in ast.iter_child_nodes(tree):
        if within or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)):
            yield from changes_of(node)
        if not isinstance(node, ast.JoinedStr):  # before Python 3.12, what is in it has wrong positions
            yield from changes(node, within or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)))


def changes_of(node: ast.AST) -> Iterator[tuple[ast.expr | ast.stmt, str]]:  # noqa: C901 - a table
    """Yield what can replace this node."""
    if isinstance(node, (ast.If, ast.While, ast.IfExp)):
        yield node.test, f"(not ({ast.unparse(node.test)}))"
    elif isinstance(node, ast.comprehension):
        for condition in node.ifs:
            yield condition, f"(not ({ast.unparse(condition)}))"
    elif isinstance(node, ast.BoolOp):
        for dropped in node.values:
            kept = [value for value in node.values if value is not dropped]
            yield node, f"({ast.unparse(ast.BoolOp(node.op, kept) if len(kept) > 1 else kept[0])})"
    elif isinstance(node, ast.Compare) and len(node.ops) == 1:
        left, right = ast.unparse(node.left), ast.unparse(node.comparators[0])
        if not (isinstance(node.ops[0], ORDER) and re.search(r"\bnow\b", f"{left} {right}")):
            yield node, f"({left} {COMPARISONS[type(node.ops[0])]} {right})"
    elif isinstance(node, ast.Call) and len(node.args) == 2 and ast.unparse(node.func) not in SYMMETRIC:
        yield node, ast.unparse(ast.Call(node.func, node.args[::-1], node.keywords))
    elif isinstance(node, ast.Return) and node.value is not None:
        if not (isinstance(node.value, ast.Constant) and node.value.value is None):
            yield node, "return None"
    elif isinstance(node, ast.Expr):
        if not isinstance(node.value, (ast.Constant, ast.Yield)):
            yield node, "pass"
    elif isinstance(node, STATEMENTS) or (isinstance(node, ast.AnnAssign) and node.value is not None):
        yield node, "pass"


def draw(folders: list[str], count: int, seed: int) -> list[Mutant]:
    """Return that many mutants of these folders, without those that are known to be equivalent."""
    files = sorted(str(file.relative_to(ROOT)) for name in folders for file in python_files(ROOT / name))
    known = set(equivalent())
    mutants = [mutant for file in files for mutant in mutants_of(file) if mutant.key not in known]
    return random.Random(seed).sample(mutants, min(count, len(mutants)))  # noqa: S311 - to draw the same again


def python_files(root: Path) -> Iterator[Path]:
    """Yield the Python files of a folder, or the file itself."""
    yield from [root] if root.is_file() else root.rglob("*.py")


def equivalent() -> Iterator[str]:
    """Yield the mutants that no test can kill. Lines that begin with a space say why."""
    for line in EQUIVALENT.read_text().splitlines():
        if line and not line.startswith((" ", "#")):
            yield line


def fault_of_types(root: Path) -> str:
    """Return what mypy finds first in the package; "" if it finds nothing, or fails itself."""
    command = [sys.executable, "-m", "mypy", PACKAGE]
    run = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    return (run.stdout + run.stderr).partition("\n")[0] if run.returncode == 1 else ""


class Copy:
    """A copy of the tree with one mutant at a time."""

    def __init__(self, parent: str, workers: int) -> None:
        self.root = Path(tempfile.mkdtemp(dir=parent)) / "tree"
        self._workers = workers
        self._times = itertools.count(1)
        shutil.copytree(ROOT, self.root, ignore=LEFT_OUT, symlinks=True)

    def killer(self, mutant: Mutant, tests: list[str]) -> str | None:
        """Return what killed a mutant: the first test that failed twice, or what stopped them; None if it survived."""
        file = self.root / mutant.path
        source = file.read_bytes()
        try:
            self.write(file, source[: mutant.start] + mutant.after.encode() + source[mutant.end :])
            if fault := fault_of_types(self.root):
                return fault
            for tier in TIERS:
                of_tier = [test for test in tests if test.startswith(tier)]
                tests = [test for test in tests if not test.startswith(tier)]
                while of_tier and (failed := self.failing(of_tier)):
                    if failed not in of_tier or self.failing([failed]):
                        return failed
                    say(f"    not always red, so not counted: {failed}")
                    of_tier.remove(failed)
            return None
        finally:
            self.write(file, source)

    def write(self, file: Path, source: bytes) -> None:
        """Write a file with a time of its own: to Python and mypy, one size and one second are one content."""
        file.write_bytes(source)
        os.utime(file, (now := next(self._times), now))

    def failing(self, tests: list[str]) -> str | None:
        """Run these tests; return the first that failed, or else what stopped them."""
        code, output = self.run("-x", f"-n{min(self._workers, len(tests))}", "--timeout=100", tests=tests)
        failed = (line.split(" ", 1)[1] for line in output if line.startswith(("FAILED tests", "ERROR tests")))
        return next((name.split(" - ")[0] for name in failed), output[-1]) if code not in (0, 5) else None

    def run(self, *options: str, tests: list[str]) -> tuple[int, list[str]]:
        """Run tests; return the exit status of pytest, and what it printed."""
        (self.root / "tests.txt").write_text("".join(f"{test}\n" for test in tests))
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", "-p", "no:cacheprovider", "--tb=line"]
        command += ["--dist=loadfile", "--no-loadscope-reorder", *options, "@tests.txt"]
        env = {**os.environ, "PYTHONPATH": str(self.root)}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        run = subprocess.Popen(command, cwd=self.root, env=env, start_new_session=True, **pipes)
        try:
            output, _ = run.communicate(timeout=SLOWEST)
        except subprocess.TimeoutExpired:
            output = f"no end within {SLOWEST} s"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(run.pid, signal.SIGKILL)
            run.wait()
        return run.returncode, output.splitlines() or ["no output"]


def judge(mutant: Mutant, tests: list[str], copies: queue.Queue[Copy]) -> bool:
    """Try a mutant, and print the result; return whether it survived."""
    began = time.monotonic()
    copy = copies.get()
    try:
        killer = copy.killer(mutant, tests)
    finally:
        copies.put(copy)
    what = f"killed by {killer}" if killer else f"SURVIVED {len(tests)} tests"
    say(f"{mutant}\n    {what}, {time.monotonic() - began:.0f} s")
    return killer is None


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> int:
    """Draw mutants, try them, and print the table of survivors; return 1 if there are any."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", default=[f"{PACKAGE}/{room}" for room in ROOMS])
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--seed", type=int, default=datetime.datetime.now(datetime.UTC).toordinal())
    parser.add_argument("--only", metavar="FILE:LINE", action="append", help="all mutants of that line")
    parser.add_argument("--at-once", type=int, default=3, help="how many of them are tried at once")
    parser.add_argument("--workers", type=int, default=2, help="how many processes test one of them")
    options = parser.parse_args()
    if fault := fault_of_types(ROOT):
        parser.error(f"without any change: {fault}")
    mutants = draw(options.folders, sys.maxsize if options.only else options.count, options.seed)
    mutants = [mutant for mutant in mutants if not options.only or str(mutant).split(": ")[0] in options.only]
    say(f"{len(mutants)} mutants, seed {options.seed}")
    with tempfile.TemporaryDirectory(prefix="zklock-mutants-") as parent:
        recording = Copy(parent, options.workers)
        recorder = reach.Recorder(recording.root, PACKAGE)
        say(recording.run("-p", "reached", "-nauto", tests=["tests"])[1][-1])
        reached = recorder.read()
        tests = []
        for mutant in mutants:
            block = f"{mutant.path}:{reach.block_of(ROOT / mutant.path, mutant.line)}"
            tests.append(sorted(reached[block] or reached[mutant.path]))
        copies: queue.Queue[Copy] = queue.Queue()
        for _ in range(options.at_once):
            copies.put(Copy(parent, options.workers))
        with ThreadPoolExecutor(options.at_once) as pool:
            survived = list(pool.map(judge, mutants, tests, itertools.repeat(copies)))
    survivors = [mutant for mutant, alive in zip(mutants, survived, strict=True) if alive]
    say(f"\n{len(survivors)} of {len(mutants)} survived, seed {options.seed}")
    for mutant in survivors:
        say(str(mutant))
    return bool(survivors)


if __name__ == "__main__":
    sys.exit(main())
