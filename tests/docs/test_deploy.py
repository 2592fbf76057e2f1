"""The page about deploys: pods that migrate one after the other, and a lock inside a migration."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest
from support.docs import text_of, written
from support.project import SETTINGS
from support.zoo import Zoo

PAGE = "how-to/deploy.md"

INITIAL = """
from django.db import migrations, models

class Migration(migrations.Migration):
    operations = [migrations.CreateModel("Item", [("sku", models.CharField(max_length=40, primary_key=True))])]
"""


@pytest.mark.zookeeper
def test_pods_that_start_together_migrate_once(tmp_path: Path, zoo: Zoo) -> None:
    """The command of the page: one pod applies all migrations, also that with a lock; the other finds nothing to do."""
    (line,) = re.findall(r"^\$ python (manage.py zklock run .* migrate)$", text_of(PAGE), re.MULTILINE)
    command = [sys.executable if word == "python" else word for word in shlex.split(line)]
    settings = SETTINGS.replace('"django_zklock"]', '"django_zklock", "shop"]').replace(":memory:", "shop.sqlite3")
    project = written(
        PAGE,
        tmp_path,
        {
            "project_settings.py": settings,
            "shop/__init__.py": "",
            "shop/migrations/__init__.py": "",
            "shop/migrations/0001_initial.py": INITIAL,
        },
    )
    pods = []
    try:
        with zoo.hold_elsewhere("deploy/migrate"):
            pods = [project.start(*command, ZKLOCK_URL=zoo.url()) for _ in range(2)]
            zoo.wait_contenders("deploy/migrate", 3)
        said = [pod.communicate(timeout=60) for pod in pods]
    finally:
        for pod in pods:
            pod.kill()
    assert [pod.returncode for pod in pods] == [0, 0], said
    assert sorted(out.count("Applying shop.0002_fill... OK") for out, _ in said) == [0, 1]
    assert sum("No migrations to apply." in out for out, _ in said) == 1
