"""The page about upgrades: the steps that remove the package leave nothing of it in the database."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

from support.docs import text_of
from support.project import Project

SETTINGS = """
from project_settings import *

INSTALLED_APPS = [
    *INSTALLED_APPS,
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django_zklock.contrib.events",
    "django_zklock.contrib.fences",
]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "shop.sqlite3"}}
SILENCED_SYSTEM_CHECKS = ["admin.E403", "admin.E404", "admin.E408", "admin.E409", "admin.E410"]
"""

STEPS = """
import sys

import django

django.setup()
from django.contrib.auth.models import Permission
from django.core.management import call_command
from django.db import connection

ours = Permission.objects.filter(content_type__app_label__startswith="zklock").values_list("codename", flat=True)


def look():
    print([*ours.all(), *(name for name in connection.introspection.table_names() if name.startswith("zklock"))])


call_command("migrate", verbosity=0)
look()
for app in sys.argv[1:]:
    call_command("migrate", app, "zero", verbosity=0)
"""


def test_nothing_is_left_in_the_database(tmp_path: Path) -> None:
    page = text_of("how-to/upgrade.md")
    (code,) = re.findall(r"^ *```python\n(.*?)^ *```$", page, re.MULTILINE | re.DOTALL)
    apps = re.findall(r"`(?:python manage.py migrate )?(zklock_\w+)", page)
    project = Project(tmp_path)
    project.write("shop_settings.py", SETTINGS)
    project.write("remove.py", f"{STEPS}{textwrap.dedent(code)}\nlook()\n")
    before, after = project.succeed("remove.py", *apps, DJANGO_SETTINGS_MODULE="shop_settings").stdout.splitlines()
    assert "break_lock" in before
    assert "zklock_events_attempt" in before
    assert after == "[]"
