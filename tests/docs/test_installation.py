"""The home page and `installation.md`: their code runs, and the page of the installation leaves out nothing."""

from __future__ import annotations

import re
from configparser import ConfigParser
from pathlib import Path

import pytest
from django.test import RequestFactory
from support.docs import DOCS, files_of, run, text_of
from support.project import Project
from support.zoo import Zoo

PAGE = "installation.md"
SETUP = ConfigParser()
SETUP.read(DOCS.parent / "setup.cfg")

BASE = """
SECRET_KEY = "test"
USE_TZ = True
INSTALLED_APPS = []
MIDDLEWARE = []
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
"""
COMMANDS = """
import django
from django.core.management import call_command

django.setup()
call_command("migrate")
call_command("check")
call_command("zklock", "doctor")
"""


@pytest.mark.zookeeper
def test_the_code_of_the_home_page_locks_a_view(zoo: Zoo, rf: RequestFactory) -> None:
    files = files_of("index.md")
    assert run(files["views.py"], "views.py")["pay"](rf.get("/"), pk=7).content == b"order 7 is paid"


@pytest.mark.zookeeper
def test_the_settings_and_commands_of_the_installation_work(zoo: Zoo, tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.write("settings.py", BASE + files_of(PAGE)["settings.py"])
    done = project.succeed("-c", COMMANDS, DJANGO_SETTINGS_MODULE="settings", ZKLOCK_URL=zoo.url(session_timeout=20))
    for line in ("System check identified no issues (0 silenced).", "errors: 0, "):  # a slow disk is a warning
        assert f"\n{line}" in text_of(PAGE)
        assert line in done.stdout
    assert "Applying zklock_events." in done.stdout
    assert "Applying zklock_fences." in done.stdout


def test_each_extra_is_named() -> None:
    named = re.findall(r"^\| `(\w+)` \|", text_of(PAGE), re.MULTILINE)
    assert named == [*SETUP["options.extras_require"]]


def test_the_versions_are_those_of_the_package() -> None:
    classifiers = SETUP["metadata"]["classifiers"]
    for name, classifier in (("Python", "Programming Language :: Python"), ("Django", "Framework :: Django")):
        versions = re.findall(rf"^{classifier} :: (\d+\.\d+)$", classifiers, re.MULTILINE)
        assert f"**{name}** {versions[0]} to {versions[-1]}" in text_of(PAGE)
