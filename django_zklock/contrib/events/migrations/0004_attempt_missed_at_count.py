"""Add when a hold without an end was first missed, and how many callers a row is about."""

from __future__ import annotations

from typing import ClassVar

from django.db import migrations, models


class Migration(migrations.Migration):
    """Rows from before it were not missed, and are about one caller each. So are those of processes from before it."""

    dependencies: ClassVar = [("zklock_events", "0003_attempt_session")]

    operations: ClassVar = [
        migrations.AddField("Attempt", "missed_at", models.DateTimeField(null=True)),
        migrations.AddField("Attempt", "count", models.IntegerField(db_default=1, default=1)),
    ]
