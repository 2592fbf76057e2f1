"""The installation, deploys, upgrades and events: the code runs, and the tables leave out nothing."""

import re
import shlex
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from configparser import ConfigParser

from support.docs import DOCS, files_of, settings_of, text_of, written
from support.project import SETTINGS, Project

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


def test_the_settings_and_commands_of_the_installation_work(zoo, tmp_path):
    project = Project(tmp_path)
    project.write("settings.py", BASE + files_of(PAGE)["settings.py"])
    done = project.succeed("-c", COMMANDS, DJANGO_SETTINGS_MODULE="settings", ZKLOCK_URL=zoo.url())
    for line in ("System check identified no issues (0 silenced).", "errors: 0, "):  # a slow disk is a warning
        assert f"\n{line}" in text_of(PAGE)
        assert line in done.stdout
    assert "Applying zklock_events." in done.stdout
    assert "Applying zklock_fences." in done.stdout


def test_each_extra_is_named():
    named = re.findall(r"^\| `(\w+)` \|", text_of(PAGE), re.MULTILINE)
    assert named == [*SETUP["options.extras_require"]]


def test_the_versions_are_those_of_the_package():
    classifiers = SETUP["metadata"]["classifiers"]
    for name, classifier in (("Python", "Programming Language :: Python"), ("Django", "Framework :: Django")):
        versions = re.findall(rf"^{classifier} :: (\d+\.\d+)$", classifiers, re.MULTILINE)
        assert f"**{name}** {versions[0]} to {versions[-1]}" in text_of(PAGE)


INITIAL = """
from django.db import migrations, models

class Migration(migrations.Migration):
    operations = [migrations.CreateModel("Item", [("sku", models.CharField(max_length=40, primary_key=True))])]
"""


def test_pods_migrate_one_after_the_other(tmp_path, zoo):
    (line,) = re.findall(r"^\$ python (manage.py zklock run .* migrate)$", text_of("how-to/deploy.md"), re.MULTILINE)
    command = [sys.executable if word == "python" else word for word in shlex.split(line)]
    settings = SETTINGS.replace('"django_zklock", ', '"django_zklock", "shop", ').replace(":memory:", "shop.sqlite3")
    files = {"project_settings.py": settings, "shop/migrations/0001_initial.py": INITIAL}
    packages = {"shop/__init__.py": "", "shop/migrations/__init__.py": ""}
    project = written("how-to/deploy.md", tmp_path, {**files, **packages})
    with ThreadPoolExecutor(1) as pool:
        with zoo.hold_elsewhere("deploy/migrate"):
            first = pool.submit(project.succeed, *command, ZKLOCK_URL=zoo.url())
            zoo.wait_contenders("deploy/migrate", 2)
        assert "Applying shop.0002_fill... OK" in first.result().stdout
    assert "No migrations to apply." in project.succeed(*command, ZKLOCK_URL=zoo.url()).stdout


ALL_APPS = """
from project_settings import *

INSTALLED_APPS += [f"django.contrib.{name}" for name in ("admin", "auth", "contenttypes", "sessions", "messages")]
INSTALLED_APPS += ["django_zklock.contrib.events", "django_zklock.contrib.fences"]
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


def test_nothing_is_left_in_the_database(tmp_path):
    page = text_of("how-to/upgrade.md")
    (code,) = re.findall(r"^ *```python\n(.*?)^ *```$", page, re.MULTILINE | re.DOTALL)
    apps = re.findall(r"`(?:python manage.py migrate )?(zklock_\w+)", page)
    project = Project(tmp_path)
    project.write("shop_settings.py", ALL_APPS)
    project.write("remove.py", f"{STEPS}{textwrap.dedent(code)}\nlook()\n")
    before, after = project.succeed("remove.py", *apps, DJANGO_SETTINGS_MODULE="shop_settings").stdout.splitlines()
    assert "break_lock" in before
    assert "zklock_events_event" in before
    assert after == "[]"


IN_A_FILE = """
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "past.sqlite3"}}
"""
SELL = "import django; django.setup(); from shop import sell; sell('lamp')"
SHOW = """
import django; django.setup()
from django_zklock.contrib.events.models import Event
print(*Event.objects.values_list("key", "outcome"))
"""


def test_the_app_records_from_the_first_lock_to_the_exit(zoo, tmp_path):
    settings = f"{settings_of('how-to/events.md')}{IN_A_FILE}"
    project = written("how-to/events.md", tmp_path, {"file_settings.py": settings})
    env = {"DJANGO_SETTINGS_MODULE": "file_settings", "ZKLOCK_URL": zoo.url()}
    for arguments in (("manage.py", "migrate"), ("-c", SELL)):
        project.succeed(*arguments, **env)
    assert project.run("-c", SHOW, **env).stdout == "('inventory/lamp', 'released')\n"
