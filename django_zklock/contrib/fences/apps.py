"""The app `django_zklock.contrib.fences`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.apps import AppConfig

if TYPE_CHECKING:
    from django_zklock.contrib.fences.block import FencedBlock
    from django_zklock.fencing.fence import Fence


class FencesConfig(AppConfig):
    """An app of its own: only projects that use the table of fences need it."""

    name = "django_zklock.contrib.fences"
    label = "zklock_fences"
    verbose_name = "Fences"
    default_auto_field = "django.db.models.BigAutoField"

    def fenced_block(self, fence: Fence, name: str, using: str) -> FencedBlock:
        """Return the block of `hold.fenced(name)`, which finds this app in Django's registry."""
        from django_zklock.contrib.fences.block import FencedBlock  # noqa: PLC0415 - it needs models, and kazoo

        return FencedBlock(fence, name, using)
