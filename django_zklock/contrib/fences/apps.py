"""Django's view of the table of fences."""

from __future__ import annotations

from django.apps import AppConfig


class FencesConfig(AppConfig):
    """An app beside `django_zklock`, as its table is only for those who use it."""

    name = "django_zklock.contrib.fences"
    label = "zklock_fences"
    verbose_name = "Fences"
    default_auto_field = "django.db.models.BigAutoField"
