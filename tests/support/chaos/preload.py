"""Libraries that stand between a program and the C library (LD_PRELOAD): compiled when asked for, loaded by `env`."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

COMPILER = os.environ.get("CC") or "cc"


class ToolFailed(RuntimeError):
    """A tool of the kit could not do what it says: a fault that does not happen would prove nothing."""


def why_not() -> str:
    """Return why libraries cannot be preloaded here, or an empty text."""
    if sys.platform != "linux" or sys.maxsize < 2**32:
        return "LD_PRELOAD as it is used here wants Linux on 64 bits"
    if shutil.which(COMPILER.split()[0]) is None:
        return f"no C compiler: there is no {COMPILER!r} on the PATH"
    return ""


#: For tests that preload something.
needs_compiler = pytest.mark.skipif(bool(why_not()), reason=why_not() or "a C compiler is here")


@functools.cache
def compiled(source: Path) -> Path:
    """Compile a C file next to this one to a shared library, once in a process, and return where it is."""
    if problem := why_not():
        raise ToolFailed(problem)
    library = Path(_folder().name) / f"{source.stem}.so"
    command = [*COMPILER.split(), "-shared", "-fPIC", "-O2", "-Wall", "-Werror", "-o", str(library), str(source)]
    # Not by way of `env`: the compiler is not to run with what a test preloads.
    done = subprocess.run([*command, "-ldl", "-lpthread"], check=False, capture_output=True, text=True)
    if done.returncode:
        raise ToolFailed(f"{' '.join(command)} failed:\n{done.stderr}")
    return library


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="zklock-preload-")  # removed at exit


def preloading(library: Path) -> dict[str, str]:
    """Return the environment variable that makes a program load a library before those that are preloaded."""
    before = os.environ.get("LD_PRELOAD", "")
    return {"LD_PRELOAD": f"{library}:{before}" if before else str(library)}
