"""The table of the past of all locks."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import ClassVar, Final

from django.db import models
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from django_zklock.fencing.model import ExactCharField
from django_zklock.report.formatting import clean, host_and_pid

MAX_TEXT: Final = 255
LONGEST_PAUSE: Final = 30.0
"""Seconds: the longest pause of the writer of a process, while the database fails."""
EXIT_TIMEOUT: Final = 8.0
"""Seconds that the exit of a process may wait for the last write. A longer outage of the database loses ends."""
LATE: Final = LONGEST_PAUSE + 10.0
"""Seconds after which the end of a hold is surely in the table, if the database is there: that pause, and a write."""


class Event(models.Model):
    """A hold and how it ended, a wait that was not granted, or what an operator did."""

    HELD = "held"
    """It is still held, or its process ended without recording the end."""
    RELEASED = "released"
    LOST = "lost"
    CUT_OFF = "cut off"
    """Lost by a fault of the network or a pause of the process."""
    TIMED_OUT = "timed out"
    FAILED = "failed"
    """ZooKeeper refused the caller, or did not answer."""
    TRIED = "tried"
    """A try without waiting, outside of views. The work was skipped, comes again, or does without the lock."""
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
        FAILED: _("No answer, or refused"),
        TRIED: _("Tried, and not granted"),
        DEADLOCK: _("Deadlock"),
        STALE: _("Fenced write refused"),
        REFUSED: _("Release refused"),
        ACTION: _("Operator's action"),
    }

    at: models.Field[datetime, datetime] = models.DateTimeField()
    """When it was granted, or timed out; by the clock of its host."""
    recorded: models.Field[datetime, datetime] = models.DateTimeField(auto_now_add=True)
    """When the row was written: at that time, the database was there."""
    key: models.Field[str, str] = ExactCharField(max_length=MAX_TEXT)
    kind: models.Field[str, str] = models.CharField(max_length=16)
    outcome: models.Field[str, str] = models.CharField(_("What"), max_length=16, choices=OUTCOMES)
    host: models.Field[str, str] = models.CharField(max_length=MAX_TEXT)
    pid: models.Field[int, int] = models.BigIntegerField(default=0)
    work: models.Field[str, str] = models.CharField(_("Work"), max_length=MAX_TEXT)
    """The work of the holder or waiter, the act of the operator, or the story of a deadlock."""
    by: models.Field[str, str] = models.CharField(max_length=MAX_TEXT)
    """The operator, and the origin of the action."""
    reason: models.Field[str, str] = models.CharField(_("Reason"), max_length=MAX_TEXT)
    token: models.Field[int | None, int | None] = models.BigIntegerField(null=True)
    session: models.Field[int | None, int | None] = models.BigIntegerField(null=True)
    waited: models.Field[float | None, float | None] = models.FloatField(null=True)
    held: models.Field[float | None, float | None] = models.FloatField(null=True)
    count: models.Field[int, int] = models.IntegerField("×", default=1)
    """Tries that did not wait, and callers without an answer, share a row."""

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

    @property
    def label(self) -> str:
        """The outcome in words; that of a newer release as it is."""
        return str(self.OUTCOMES.get(self.outcome, self.outcome))

    @property
    def who(self) -> str:
        """The operator, or host and process."""
        return clean(self.by) or host_and_pid(self.host, self.pid)

    def misses_end(self, newer: Event | None) -> bool:
        """Return whether the next grant was written so long ago that the end of this hold would be there."""
        return self.held is None and newer is not None and newer.recorded < timezone.now() - timedelta(seconds=LATE)
