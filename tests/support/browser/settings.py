"""A site behind a strict Content-Security-Policy; SITE_HOME has its database. UNFOLD=1: under django-unfold."""

import json
import os
from pathlib import Path

from support.admintemplates import ADMIN_MIDDLEWARE, ADMIN_TEMPLATES
from support.browser.policy import THEMED

HOME = Path(os.environ["SITE_HOME"])
SECRET_KEY = "test"
USE_TZ = True
TIME_ZONE = "UTC"
ROOT_URLCONF = "support.browser.urls"
ALLOWED_HOSTS = ["127.0.0.1"]
STATIC_URL = "/static/"
INSTALLED_APPS = [
    *(["unfold"] if THEMED else []),
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "django_zklock",
    "django_zklock.contrib.events",
    *json.loads(os.environ.get("SITE_APPS", "[]")),
]
MIDDLEWARE = ["support.browser.policy.strict", "django.middleware.security.SecurityMiddleware", *ADMIN_MIDDLEWARE]
TEMPLATES = ADMIN_TEMPLATES
DATABASES = {
    "default": {"ENGINE": "django.db.backends.sqlite3", "NAME": HOME / "site.sqlite3", "OPTIONS": {"timeout": 20}}
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "handlers": {"console": {"class": "logging.StreamHandler"}},
    "root": {"handlers": ["console"], "level": "INFO"},
}

ZKLOCK = {"URL": os.environ["ZKLOCK_URL"], **json.loads(os.environ.get("SITE_ZKLOCK", "{}"))}
