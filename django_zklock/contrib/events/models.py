"""The tables of attempts to acquire locks, and of operators' actions."""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar

from django.db import models

from django_zklock.fencing.model import ExactCharField

MAX_TEXT = 255


class Attempt(models.Model):
    """
    One attempt to acquire a lock: a grant and how it ended, or a wait that timed out or was part of a deadlock.

    The writer of each process inserts the rows, and updates those of longer holds at their end.
    """

    HELD = "held"
    """It is still held, or its process ended without recording the end."""
    RELEASED = "released"
    LOST = "lost"
    TIMED_OUT = "timed out"
    DEADLOCK = "deadlock"
    """It waited in a circle. The rows of a circle have the same `at`; only the wait that was ended has `waited`."""

    STALE = "stale"
    """Its fenced write was refused, although it held the lock."""
    REFUSED = "refused"
    """ZooKeeper refused its release, so others waited for it until the ACL was changed or its process ended."""

    key: models.Field[str, str] = ExactCharField(max_length=MAX_TEXT)
    template: models.Field[str, str] = ExactCharField(max_length=MAX_TEXT)
    kind: models.Field[str, str] = models.CharField(max_length=16)
    host: models.Field[str, str] = models.CharField(max_length=MAX_TEXT)
    pid: models.Field[int, int] = models.BigIntegerField()
    work: models.Field[str, str] = models.CharField(max_length=MAX_TEXT)
    token: models.Field[int | None, int | None] = models.BigIntegerField(null=True)
    session: models.Field[int | None, int | None] = models.BigIntegerField(null=True)
    """The ZooKeeper session of a grant. Rows from before that column have none."""
    at: models.Field[datetime, datetime] = models.DateTimeField()
    """When it was granted, or timed out; by the clock of its host."""
    waited: models.Field[float | None, float | None] = models.FloatField(null=True)
    held: models.Field[float | None, float | None] = models.FloatField(null=True)
    outcome: models.Field[str, str] = models.CharField(max_length=16)
    reason: models.Field[str, str] = models.CharField(max_length=MAX_TEXT)
    """Why it was lost; the key that a wait of a deadlock held."""
    missed_at: models.Field[datetime | None, datetime | None] = models.DateTimeField(null=True)
    """When a page or the doctor first saw that its process has no contender, though the row has no end."""
    count: models.Field[int, int] = models.IntegerField(default=1, db_default=1)  # older processes do not name it
    """How many callers it is about: tries that did not wait and were refused share a row."""
    broken_by: str = ""
    """The operator who broke the lock under it, and when; no columns, `table.past_unfinished` sets them."""
    broken_at: datetime | None = None

    class Meta:
        """The indexes for the history of all locks, a lock and a host, for usual holds, and for losses."""

        default_permissions = ()
        indexes: ClassVar = [
            models.Index(fields=["key", "at"], name="zklock_events_key"),
            models.Index(fields=["template", "at"], name="zklock_events_template"),
            models.Index(fields=["at"], name="zklock_events_at"),
            models.Index(fields=["host", "at"], name="zklock_events_host"),
            models.Index(fields=["at"], condition=models.Q(outcome="lost"), name="zklock_events_lost"),
        ]

    def __str__(self) -> str:
        return f"{self.key}: {self.outcome}"


class OperatorAction(models.Model):
    """An action of an operator, in the admin, by a command or in code."""

    key: models.Field[str, str] = ExactCharField(max_length=MAX_TEXT)
    what: models.Field[str, str] = models.CharField(max_length=32)
    by: models.Field[str, str] = models.CharField(max_length=MAX_TEXT)
    reason: models.Field[str, str] = models.TextField()
    via: models.Field[str, str] = models.CharField(max_length=16)
    at: models.Field[datetime, datetime] = models.DateTimeField()
    """When it was done, by the clock of its host."""
    sure: models.Field[bool, bool] = models.BooleanField(default=True)
    holder: models.Field[str, str] = models.TextField()
    token: models.Field[int | None, int | None] = models.BigIntegerField(null=True)
    limit: models.Field[int | None, int | None] = models.IntegerField(null=True)
    seconds: models.Field[float | None, float | None] = models.FloatField(null=True)

    class Meta:
        """The indexes for the last actions on a lock, and on all."""

        default_permissions = ()
        indexes: ClassVar = [
            models.Index(fields=["key", "at"], name="zklock_events_action"),
            models.Index(fields=["at"], name="zklock_events_action_at"),
        ]

    def __str__(self) -> str:
        return f"{self.key}: {self.what} by {self.by}"


class PastIncident(models.Model):
    """An incident, as the pages and commands have seen it that looked. One that returns has the same row."""

    identity: models.Field[str, str] = models.CharField(max_length=40, unique=True)
    cause: models.Field[str, str] = models.CharField(max_length=32)
    keys: models.Field[str, str] = models.TextField()
    """The first locks, as JSON."""
    texts: models.Field[str, str] = models.TextField()
    """The values of its title, as JSON."""
    at: models.Field[datetime, datetime] = models.DateTimeField()
    """When it began."""
    seen_at: models.Field[datetime, datetime] = models.DateTimeField()
    """When it was last seen."""
    peak: models.Field[int, int] = models.IntegerField(default=0)
    """The most callers that waited because of it."""
    times: models.Field[int, int] = models.IntegerField(default=1)
    """How often it has begun."""

    class Meta:
        """The index for the last ones."""

        default_permissions = ()
        indexes: ClassVar = [models.Index(fields=["seen_at"], name="zklock_events_incident")]

    def __str__(self) -> str:
        return f"{self.cause}: {self.keys}"
