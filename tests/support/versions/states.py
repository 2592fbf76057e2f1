"""The two states of the package that run together: the checkout, and an old one from the history of git."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from support.zoo import TESTS

CHECKOUT = TESTS.parent
OLD, NEW = "old", "new"

FIRST = "60d2a36b45bf1294947048675a4e2e3d61adbada"
"""The old state as long as there is no release: the formats are frozen from this commit on."""


@dataclass(frozen=True, slots=True)
class State:
    name: str
    root: Path

    @property
    def path(self):
        """The PYTHONPATH of its processes. It wins over an installation of the checkout."""
        return f"{self.root}{os.pathsep}{TESTS}"


def old_commit(repository=CHECKOUT):
    """Return the last tag before this commit, else the first compatible commit; None if git has neither here."""
    # Not the tag of this commit: on the day of a release, the release before is the old state.
    tag = _git(repository, "describe", "--tags", "--abbrev=0", "--match=[0-9]*", "HEAD^")
    if tag is None and _git(repository, "rev-parse", "--verify", "--quiet", f"{FIRST}^{{commit}}") is not None:
        return FIRST
    return tag


def old_state(directory):
    """Write the package as it was to a directory; return None where the history of git lacks the commit."""
    commit = old_commit()
    if commit is None:
        return None
    directory.mkdir()
    with subprocess.Popen(["git", "-C", CHECKOUT, "archive", commit, "django_zklock"], stdout=subprocess.PIPE) as git:
        subprocess.run(["tar", "--extract", "--directory", directory], stdin=git.stdout, check=True)
    assert git.returncode == 0, f"git archive {commit} failed"
    return State(OLD, directory.resolve())


def _git(repository, *arguments):
    try:
        done = subprocess.run(["git", "-C", repository, *arguments], check=False, capture_output=True, text=True)
    except FileNotFoundError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None
