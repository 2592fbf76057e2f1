"""The settings of the project: what tests need, and the tables of fences in a database of their own."""

import json
import os

SECRET_KEY = "a key that both versions know, of more than 32 characters"
USE_TZ = True
INSTALLED_APPS = [
    "django.contrib.contenttypes",
    "django.contrib.auth",
    "django_zklock",
    "django_zklock.contrib.fences",
    "support.ledgers",
]
DATABASES = {"default": json.loads(os.environ["MIXED_DATABASE"])}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
ZKLOCK = {"URL": os.environ["ZKLOCK_URL"], "DEFAULTS": {"timeout": 60}}
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"level": {"format": "%(levelname)s %(name)s %(message)s"}},
    "handlers": {"error": {"class": "logging.StreamHandler", "formatter": "level"}},
    "loggers": {name: {"handlers": ["error"], "level": "INFO"} for name in ("zklock", "django_zklock", "django")},
}
