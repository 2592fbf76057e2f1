"""The how-to about the past of locks works as it is written."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.docs import text_of, written
from support.zoo import Zoo

from django_zklock.contrib.events.models import Attempt, OperatorAction

pytestmark = pytest.mark.zookeeper

PAGE = text_of("how-to/events.md")
IN_A_FILE = """
from events_settings import *
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "past.sqlite3"}}
"""
SELL = "import django; django.setup(); from shop import sell; sell('lamp')"
SHOW = """
import django; django.setup()
from django_zklock.contrib.events.models import Attempt
print(*Attempt.objects.values_list("key", "outcome"))
"""


def test_the_app_records_from_the_first_lock_to_the_exit(zoo: Zoo, tmp_path: Path) -> None:
    project = written("how-to/events.md", tmp_path, {"file_settings.py": IN_A_FILE})
    env = {"DJANGO_SETTINGS_MODULE": "file_settings", "ZKLOCK_URL": zoo.url()}
    for arguments in (("manage.py", "migrate"), ("-c", SELL)):
        project.succeed(*arguments, **env)
    assert project.run("-c", SHOW, **env).stdout == "('inventory/lamp', 'released')\n"


def test_every_field_is_in_a_table_and_every_outcome_is_named() -> None:
    named = {name for row in re.findall(r"^\| (`.*?) \|", PAGE, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)}
    fields = {field.name for model in (Attempt, OperatorAction) for field in model._meta.get_fields()}
    assert named == fields - {"id"}
    for outcome in (Attempt.HELD, Attempt.RELEASED, Attempt.LOST, Attempt.TIMED_OUT):
        assert f"`{outcome}`" in PAGE
