"""The app: connects this package to the start, the settings and the signals of Django."""

from __future__ import annotations

import sys
from contextlib import suppress
from dataclasses import fields
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any

from django.apps import AppConfig
from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.utils.translation import gettext_lazy as _

from django_zklock import conf
from django_zklock.checks import (
    check_root,
    check_semaphores,
    check_session_timeout,
    check_settings,
    check_tls_files,
    check_transport,
    check_views,
)
from django_zklock.contrib import celery
from django_zklock.core.zk import process
from django_zklock.core.zk.options import SessionOptions
from django_zklock.dashboard import extension

if TYPE_CHECKING:
    from django_zklock.locks.hold import Hold


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
        for check in (check_settings, check_session_timeout, check_semaphores, check_views, check_tls_files):
            checks.register(check, "zklock")
        checks.register(check_transport, "zklock", checks.Tags.security, deploy=True)
        checks.register(check_root, "zklock", deploy=True)
        setting_changed.connect(on_setting_changed, dispatch_uid="zklock.on_setting_changed")
        celery.register()
        with suppress(ModuleNotFoundError):  # some finders raise it
            if find_spec("celery"):
                module = "django_zklock.contrib.celery.unique.page"
                extension.pages["unique"] = extension.ExtraPage("unique", _("Unique tasks"), module)

    def sign(self, hold: Hold, until: float) -> str:
        """Return the signed token of a hold. `Hold.signed_token` finds this app in Django's registry, and calls it."""
        from django_zklock.fencing import signing  # noqa: PLC0415 - it needs models

        return signing.sign(hold, until)


FORBIDDEN = (
    "This test acquires or inspects a lock, so it would contact the ZooKeeper in settings.ZKLOCK. To give all tests a "
    'server for tests, set TEST_RUNNER = "django_zklock.testing.ZkLockRunner", or list ZkLockRunnerMixin first among '
    "the bases of your runner; with pytest, set zklock_all = true in its configuration. For one test case, list "
    'ZkLockTestMixin first among its bases. To use the ZooKeeper in the settings, add "REAL_IN_TESTS": True to ZKLOCK.'
)


def session_options() -> SessionOptions:
    """
    Return the options of the session from the settings. Raises `ImproperlyConfigured`.

    Raises `RuntimeError` in Django's test environment, unless a `LockTester` or the setting `REAL_IN_TESTS` allows it.
    """
    from django_zklock.locks import lock  # noqa: F401, PLC0415 - connects the core with Django; it imports kazoo

    config = conf.current()
    # Only a test run imports this module. `setup_test_environment` sets the attribute.
    state = getattr(sys.modules.get("django.test.utils"), "_TestState", None)
    if hasattr(state, "saved_data") and not (config.real_in_tests or process.is_allowed()):
        raise RuntimeError(FORBIDDEN)
    return _options(config)


def _options(config: conf.Config) -> SessionOptions:
    return SessionOptions(**{field.name: getattr(config, field.name) for field in fields(SessionOptions)})


def on_setting_changed(*, setting: str, **kwargs: Any) -> None:
    """Drop the configuration when a test changes `settings.ZKLOCK`, and the session if its options change, too."""
    if setting != "ZKLOCK":
        return
    conf.forget()
    session = process.peek()
    with suppress(ImproperlyConfigured):
        if session is None or session.options == _options(conf.current()):
            return
    process.reset()
