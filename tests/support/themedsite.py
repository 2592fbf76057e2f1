"""A site under django-unfold: its settings, and the locks with its `ModelAdmin`."""

from __future__ import annotations

import os

from support.admintemplates import ADMIN_TEMPLATES

SECRET_KEY = "test"
USE_TZ = True
ROOT_URLCONF = "support.themedsite"
ALLOWED_HOSTS = ["testserver"]
STATIC_URL = "static/"
INSTALLED_APPS = [
    "unfold",
    "django.contrib.admin",
    "django.contrib.contenttypes",
    "django.contrib.auth",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "django_zklock",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = ADMIN_TEMPLATES
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
ZKLOCK = {"URL": os.environ.get("ZKLOCK_URL", "zk://127.0.0.1:2181/test")}


def __getattr__(name: str) -> object:
    """Make the addresses when they are first asked for, as settings are read before there are models."""
    if name != "urlpatterns":
        raise AttributeError(name)
    from django.contrib import admin
    from django.urls import path

    from support import unfoldadmin  # noqa: F401  # it registers

    patterns = [path("admin/", admin.site.urls)]
    globals()["urlpatterns"] = patterns
    return patterns


def show() -> None:
    """Print the status of each page, and whether it names the lock that is held."""
    import django

    django.setup()
    from django.contrib.auth.models import User
    from django.core.management import call_command
    from django.test import Client

    from django_zklock import zk_lock

    call_command("migrate", verbosity=0)
    client = Client()
    client.force_login(User.objects.create_superuser("root"))
    with zk_lock("orders/42"):
        for page in ("", "?q=orders&state=held&o=-1", "orders_2F42/change/", "orders_2F42/history/", "hold/"):
            response = client.get(f"/admin/zklock/lock/{page}")
            text = response.content.decode()
            print(response.status_code, "orders/42" in text, page)
        listed = client.get("/admin/zklock/lock/").content.decode()
        assert 'id="zklock-status"' in listed
        assert "zklock/dashboard.js" in listed
        action = {"action": "break_selected", "_selected_action": ["orders/42"]}
        response = client.post("/admin/zklock/lock/", action)
        print(response.status_code, "orders/42" in response.content.decode(), "break/")
