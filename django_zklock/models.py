"""A lock as Django's admin sees it: a model without a table, for its pages, its permissions and its history."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.db import models
from django.utils.translation import gettext_lazy as _

if TYPE_CHECKING:
    from django_zklock.inspection import LockInfo

LONGEST_KEY = 1000


class Lock(models.Model):
    """
    One key of the locks, with what was seen of it.

    Nothing of it is in the database: it is made of a snapshot, and cannot be queried, saved or deleted.
    """

    key: models.CharField[str, str] = models.CharField(_("lock"), primary_key=True, max_length=LONGEST_KEY)

    info: LockInfo | None = None
    """What was seen; None for a key that nobody holds or waits for."""

    class Meta:
        """No table, no migration; but permissions."""

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
