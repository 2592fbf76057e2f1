"""The API of locks for Django: `zk_lock` and its kinds, holds, signals, and the transactions of a database."""

from __future__ import annotations

from typing import NoReturn

from django.core.exceptions import ImproperlyConfigured

from django_zklock.core.zk import process


def _refuse() -> NoReturn:
    raise ImproperlyConfigured(
        'Locks need "django_zklock" in INSTALLED_APPS, and django.setup() before the first one is acquired.'
    )


process.configure(_refuse, is_default=True)  # here, because all that asks ZooKeeper imports a module of this folder
