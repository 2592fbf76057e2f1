"""A model without a table, which gives locks their pages, permissions and history in Django's admin."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.db import models
from django.utils.translation import gettext_lazy as _

from django_zklock.names.template import MAX_KEY

if TYPE_CHECKING:
    from django_zklock.inspection import LockInfo


class Lock(models.Model):
    """
    A lock, by its key.

    It is made from a snapshot and is not in the database, so it cannot be queried, saved or deleted.
    """

    key: models.CharField[str, str] = models.CharField(_("lock"), primary_key=True, max_length=MAX_KEY)

    info: LockInfo
    """Its state. Only the locks of the list have it, and the next one."""
    incident: Any
    """The incident that its queue shows, or None."""

    class Meta:
        """No table and no migration, but permissions."""

        app_label = "zklock"
        managed = False
        default_permissions = ("view",)
        permissions = [  # noqa: RUF012
            ("break_lock", _("Can break lock")),
            ("hold_lock", _("Can hold lock")),
            ("limit_lock", _("Can set the limit of a lock")),
            ("request_release_lock", _("Can request the release of a lock")),
        ]
        verbose_name = _("lock")
        verbose_name_plural = _("locks")

    def __str__(self) -> str:
        return str(self.key)
