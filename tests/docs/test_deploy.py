"""The page about deploys: pods that migrate one after the other, and a lock inside a migration."""

from __future__ import annotations

import re
import shlex
import sys
from concurrent.futures import ThreadPoolExecutor
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
def test_pods_migrate_one_after_the_other(tmp_path: Path, zoo: Zoo) -> None:
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
    with ThreadPoolExecutor(1) as pool:
        with zoo.hold_elsewhere("deploy/migrate"):
            first = pool.submit(project.succeed, *command, ZKLOCK_URL=zoo.url())
            zoo.wait_contenders("deploy/migrate", 2)
        assert "Applying shop.0002_fill... OK" in first.result().stdout
    assert "No migrations to apply." in project.succeed(*command, ZKLOCK_URL=zoo.url()).stdout
