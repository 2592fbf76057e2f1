"""The wiring: what Django starts is joined here to what reads settings and to what knows ZooKeeper."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from django.apps import AppConfig
from django.core import checks
from django.core.handlers.asgi import ASGIHandler
from django.core.handlers.wsgi import WSGIHandler
from django.core.signals import got_request_exception, request_finished, request_started, setting_changed
from django.utils.translation import gettext_lazy as _

from django_zklock import conf
from django_zklock.checks import (
    check_bounds,
    check_root,
    check_semaphores,
    check_session_timeout,
    check_settings,
    check_transport,
    check_views,
)
from django_zklock.http import streaming
from django_zklock.zk import process

if TYPE_CHECKING:
    from django_zklock.zk.client import SessionOptions, TlsOptions


class ZkLockConfig(AppConfig):
    """Django's view of this package. Its label is short, as check ids and permissions begin with it."""

    name = "django_zklock"
    label = "zklock"
    verbose_name = _("Distributed locks")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """
        Register and join.

        Connect to nothing, and do not import kazoo: commands that need no lock, and servers that fork later, run this.
        """
        checks.register(check_settings, "zklock")
        checks.register(check_session_timeout, "zklock")
        checks.register(check_bounds, "zklock")
        checks.register(check_semaphores, "zklock")
        checks.register(check_views, "zklock")
        checks.register(check_transport, "zklock", checks.Tags.security, deploy=True)
        checks.register(check_root, "zklock", deploy=True)
        setting_changed.connect(start_over, dispatch_uid="zklock.start_over")
        process.configure(client_options)
        follow_requests()
        if "celery" in sys.modules:
            # A worker's processes end their sessions with them, whichever way its tasks take their locks.
            import_module("django_zklock.contrib.celery").connect()


def follow_requests() -> None:
    """
    Have the end of a request end what its response holds, on the servers' handlers; the test client has others.

    An error that is answered in its place is the end of a response on all of them.
    """
    request_started.connect(streaming.on_started, sender=WSGIHandler, dispatch_uid="zklock.on_started")
    request_started.connect(streaming.on_started_async, sender=ASGIHandler, dispatch_uid="zklock.on_started_async")
    got_request_exception.connect(streaming.on_failed, dispatch_uid="zklock.on_failed")
    for handler in (WSGIHandler, ASGIHandler):
        request_finished.connect(streaming.on_finished, sender=handler, dispatch_uid="zklock.on_finished")


def client_options() -> SessionOptions:
    """Return what the session of this process needs to know, from the settings; may raise `ImproperlyConfigured`."""
    from django_zklock.zk.client import SessionOptions  # noqa: PLC0415 - Django's start does not import kazoo

    config = conf.current()
    return SessionOptions(
        hosts=config.hosts,
        base=config.base,
        session_timeout=config.session_timeout,
        connect_timeout=config.connect_timeout,
        auth=config.auth,
        acl=config.acl,
        tls=None if config.tls is None else tls_options(config.tls),
    )


def tls_options(tls: conf.Tls) -> TlsOptions:
    """Return the same in the words of `zk`, which does not know `conf`."""
    from django_zklock.zk.client import TlsOptions  # noqa: PLC0415

    return TlsOptions(
        ca=tls.ca, cert=tls.cert, key=tls.key, key_password=tls.key_password, check_hostname=tls.check_hostname
    )


def start_over(*, setting: str, **kwargs: Any) -> None:
    """Forget the configuration and its session when a test changes `settings.ZKLOCK`."""
    if setting == "ZKLOCK":
        conf.forget()
        process.reset()
