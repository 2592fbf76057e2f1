"""The app: connects this package to the start, the settings and the signals of Django."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from django.apps import AppConfig, apps
from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.utils.translation import gettext_lazy as _

from django_zklock.core.zk import process

if TYPE_CHECKING:
    from django_zklock.core.zk.options import SessionOptions


class ZkLockConfig(AppConfig):
    """The app `django_zklock`. Its label is short, because the ids of checks and permissions begin with it."""

    name = "django_zklock"
    label = "zklock"
    verbose_name = _("Distributed locks")
    default_auto_field = "django.db.models.BigAutoField"

    def __init__(self, app_name: str, app_module: ModuleType | None) -> None:
        super().__init__(app_name, app_module)
        process.configure(session_options)  # before any `ready()`, so that apps above this one may acquire locks there

    def ready(self) -> None:
        """
        Register the checks and the receivers of signals.

        This opens no connection and does not import kazoo: commands without locks run it, and so do forking servers.
        """
        checks.register(_check("settings"), "zklock")
        checks.register(_check("deployment"), "zklock", checks.Tags.security, deploy=True)
        setting_changed.connect(on_setting_changed, dispatch_uid="zklock.on_setting_changed")
        import_module("django_zklock.contrib.celery").register()
        if "ZKLOCK_LOCK_ORDER" in os.environ:  # set by a test run, for the processes that it starts
            import_module("django_zklock.testing.order").watch()
        if "django_tasks_database" in apps.app_configs:
            self._connect_database_tasks()

    def _connect_database_tasks(self) -> None:
        """Wait for releases before a worker sees a task in the database. Django's own signal comes after that."""
        from django.db.models.signals import pre_save  # noqa: PLC0415 - few projects have these tasks

        from django_zklock.core.protocol import releases  # noqa: PLC0415 - likewise

        sender = "django_tasks_database.DBTaskResult"
        pre_save.connect(releases.wait, sender=sender, dispatch_uid="zklock.wait_for_releases")


@functools.cache  # Django calls `ready` again when a test changes INSTALLED_APPS, and registers equal checks once
def _check(name: str) -> Callable[..., list[checks.CheckMessage]]:
    """Return a system check, which imports its module when it is called: servers call none at their start."""

    def check(**kwargs: Any) -> list[checks.CheckMessage]:
        messages: list[checks.CheckMessage] = getattr(import_module("django_zklock.checks"), f"check_{name}")(**kwargs)
        return messages

    return check


def session_options() -> SessionOptions:
    """Return the options of the session. Raises `ImproperlyConfigured`, and in forbidden tests `RuntimeError`."""
    from django_zklock import conf  # noqa: PLC0415
    from django_zklock.core.zk.options import SessionOptions  # noqa: PLC0415
    from django_zklock.locks import lock  # noqa: F401, PLC0415 - connects the core with Django; it imports kazoo
    from django_zklock.testing import FORBIDDEN  # noqa: PLC0415

    config = conf.current()
    # Only a test run imports this module. `setup_test_environment` sets the attribute.
    state = getattr(sys.modules.get("django.test.utils"), "_TestState", None)
    if hasattr(state, "saved_data") and not (config.real_in_tests or process.allowed):
        raise RuntimeError(FORBIDDEN)
    names = {field.name for field in fields(SessionOptions)} - {"former"}
    return SessionOptions(**{name: getattr(config, name) for name in names})


def on_setting_changed(*, setting: str, **kwargs: Any) -> None:
    """Drop the configuration when a test changes `settings.ZKLOCK`, and the session if its options change, too."""
    from django_zklock import conf  # noqa: PLC0415 - this is for tests

    if setting == "ZKLOCK":
        conf.forget()
        with suppress(ImproperlyConfigured, RuntimeError):
            session = process.peek()
            if session is not None and session.options == session_options():
                return
        process.reset()
