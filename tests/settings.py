"""
The settings of the tests: the least a project needs.

ZKLOCK_URL names another ensemble than the local one, SITE_ZKLOCK (JSON) further settings of the locks,
TEST_DATABASES (JSON) further databases, or others.
"""

import json
import os

SECRET_KEY = "test"
USE_TZ = True
ROOT_URLCONF = "urls"
ALLOWED_HOSTS = ["testserver"]
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.contenttypes",
    "django.contrib.auth",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "django_zklock",
    "django_zklock.contrib.fences",
    "django_zklock.contrib.tokens",
    "support.quietevents.QuietEvents",
    "support.reply_timeout.ReplyTimeout",
    "support.foreign_calls.ForeignCalls",
    "support.ledgers",
]
STATIC_URL = "static/"
MIDDLEWARE = ["django_zklock.middleware.LockConflictMiddleware"]
# The other middleware and the templates that the admin needs are set by the tests of its pages, not for all.
SILENCED_SYSTEM_CHECKS = ["admin.E403", "admin.E408", "admin.E409", "admin.E410"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
DATABASES.update(json.loads(os.environ.get("TEST_DATABASES", "{}")))
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

ZKLOCK = {"URL": os.environ.get("ZKLOCK_URL", "zk://127.0.0.1:2181/test")}
ZKLOCK.update(json.loads(os.environ.get("SITE_ZKLOCK", "{}")))
