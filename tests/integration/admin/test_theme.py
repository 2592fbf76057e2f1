"""The pages under a theme of the admin with its own templates and `ModelAdmin`."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from support.zoo import TESTS, Zoo

pytestmark = pytest.mark.zookeeper


def test_pages_work_under_unfold(zoo: Zoo) -> None:
    """`LockAdminMixin` goes before the `ModelAdmin` of the theme."""
    pytest.importorskip("unfold")
    path = f"{TESTS}{os.pathsep}{TESTS.parent}"
    env = {**os.environ, "DJANGO_SETTINGS_MODULE": "support.themedsite", "ZKLOCK_URL": zoo.url(), "PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, "-c", "from support import themedsite; themedsite.show()"],
        env=env,
        cwd=TESTS,
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
    )
    assert done.returncode == 0, done.stderr
    lines = [line.split(maxsplit=2) for line in done.stdout.splitlines()]
    assert [status for status, *_ in lines] == ["200"] * 6
    assert [named for _, named, *_ in lines] == ["True", "True", "True", "True", "False", "True"]
