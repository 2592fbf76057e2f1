"""A small Django project of a user, written to a directory: settings, `manage.py`, a shop with one locked function."""

import os
import subprocess
import sys

from support import forked

SETTINGS = """
import os
SECRET_KEY = "test"
USE_TZ = True
DEBUG = os.environ.get("DEBUG") == "1"
INSTALLED_APPS = ["django_zklock", "support.reply_timeout.ReplyTimeout"]
MIDDLEWARE = ["django_zklock.middleware.LockConflictMiddleware"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
ZKLOCK = {
    "URL": os.environ.get("ZKLOCK_URL", "zk://127.0.0.1:1/nobody-is-here"),
    "DEFAULTS": {"timeout": 0},
    "LOCKS": {"inventory": {"path": "inventory/{sku}", "timeout": 1}},
}
"""

MANAGE = """
import os
import sys
from django.core.management import execute_from_command_line
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project_settings")
if __name__ == "__main__":
    execute_from_command_line(sys.argv)
"""

SHOP = '''
"""A shop with one item of each kind."""
from django_zklock import zk_locked

sold = []


@zk_locked("inventory", on_conflict="raise")
def sell(sku, pay=lambda: None):
    pay()
    sold.append(sku)
    return sku
'''

PLAIN_PYTEST = """
[pytest]
pythonpath = .
addopts =
    -p no:asyncio -p no:anyio -p no:hypothesispytest -p no:randomly
    -W ignore::pytest.PytestAssertRewriteWarning
"""
"""A run starts sooner without the plugins that only this repository needs. A fork has imported this package before."""

PYTEST = f"{PLAIN_PYTEST}DJANGO_SETTINGS_MODULE = project_settings\nfilterwarnings = error\n"


def environment(**more):
    """Return the environment of a program that is not part of this run of the tests, but uses the same packages."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "ZKLOCK"))}
    inherited.pop("DJANGO_SETTINGS_MODULE", None)
    return {**inherited, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **more}


class Project:
    def __init__(self, directory):
        self.directory = directory
        for name, text in {
            "project_settings.py": SETTINGS,
            "manage.py": MANAGE,
            "shop.py": SHOP,
            "pytest.ini": PYTEST,
        }.items():
            self.write(name, text)

    def write(self, name, text):
        path = self.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def run(self, *arguments, **env):
        return forked.run(arguments, cwd=self.directory, env=environment(**env), timeout=250)

    def succeed(self, *arguments, **env):
        done = self.run(*arguments, **env)
        assert done.returncode == 0, done.stdout + done.stderr
        return done

    def start(self, *arguments, **env):
        """Start Python, with text pipes to its ends; the caller ends it."""
        return forked.start(
            arguments,
            cwd=self.directory,
            env=environment(**env),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
