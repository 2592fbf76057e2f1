"""Add the session of an attempt, and the indexes of the history."""

from __future__ import annotations

from typing import ClassVar

from django.db import migrations, models


class Migration(migrations.Migration):
    """Rows from before it have no session."""

    dependencies: ClassVar = [("zklock_events", "0002_operatoraction")]

    operations: ClassVar = [
        migrations.AddField("Attempt", "session", models.BigIntegerField(null=True)),
        migrations.AddIndex("Attempt", models.Index(fields=["at"], name="zklock_events_at")),
        migrations.AddIndex("Attempt", models.Index(fields=["host", "at"], name="zklock_events_host")),
        migrations.AddIndex("OperatorAction", models.Index(fields=["at"], name="zklock_events_action_at")),
    ]
