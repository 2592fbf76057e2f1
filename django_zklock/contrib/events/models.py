"""The table of the past of all locks."""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar

from django.db import models
from django.utils.translation import gettext_lazy as _

from django_zklock.fencing.model import ExactCharField

MAX_TEXT = 255


class Event(models.Model):
    """A hold and how it ended, a wait that was not granted, or what an operator did."""

    HELD = "held"
    """It is still held, or its process ended without recording the end."""
    RELEASED = "released"
    LOST = "lost"
    CUT_OFF = "cut off"
    """Lost by a fault of the network or a pause of the process."""
    TIMED_OUT = "timed out"
    DEADLOCK = "deadlock"
    STALE = "stale"
    """Its fenced write was refused, although it held the lock."""
    REFUSED = "refused"
    """ZooKeeper refused its release."""
    ACTION = "action"
    OUTCOMES: ClassVar = {
        HELD: _("Held, no end recorded"),
        RELEASED: _("Held and released"),
        LOST: _("Held and lost"),
        CUT_OFF: _("Held and cut off"),
        TIMED_OUT: _("Waited, and not granted"),
        DEADLOCK: _("Deadlock"),
        STALE: _("Fenced write refused"),
        REFUSED: _("Release refused"),
        ACTION: _("Operator's action"),
    }

    at: models.Field[datetime, datetime] = models.DateTimeField()
    """When it was granted, or timed out; by the clock of its host."""
    key: models.Field[str, str] = ExactCharField(max_length=MAX_TEXT)
    kind: models.Field[str, str] = models.CharField(max_length=16)
    outcome: models.Field[str, str] = models.CharField(max_length=16, choices=OUTCOMES)
    host: models.Field[str, str] = models.CharField(max_length=MAX_TEXT)
    pid: models.Field[int, int] = models.BigIntegerField(default=0)
    work: models.Field[str, str] = models.CharField(max_length=MAX_TEXT)
    """What it ran, or what the operator did."""
    by: models.Field[str, str] = models.CharField(max_length=MAX_TEXT)
    """The operator, and the origin of the action."""
    reason: models.Field[str, str] = models.CharField(max_length=MAX_TEXT)
    token: models.Field[int | None, int | None] = models.BigIntegerField(null=True)
    session: models.Field[int | None, int | None] = models.BigIntegerField(null=True)
    waited: models.Field[float | None, float | None] = models.FloatField(null=True)
    held: models.Field[float | None, float | None] = models.FloatField(null=True)
    count: models.Field[int, int] = models.IntegerField(default=1)
    """Tries that did not wait and were refused share a row."""

    class Meta:
        """The indexes for a lock, and for what happened lately."""

        verbose_name = _("event of a lock")
        verbose_name_plural = _("history of the locks")
        default_permissions = ()
        indexes: ClassVar = [
            models.Index(fields=["key", "at"], name="zklock_events_key"),
            models.Index(fields=["outcome", "at"], name="zklock_events_outcome"),
            models.Index(fields=["at"], name="zklock_events_at"),
        ]

    def __str__(self) -> str:
        return f"{self.key}: {self.outcome}"
