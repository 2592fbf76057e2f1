"""Make the table."""

from __future__ import annotations

from typing import ClassVar

from django.db import migrations, models
from django.db.migrations.operations.base import Operation

from django_zklock.fencing.model import ExactCharField


class Migration(migrations.Migration):
    """The table of events."""

    initial = True

    dependencies: ClassVar[list[tuple[str, str]]] = []

    operations: ClassVar[list[Operation]] = [
        migrations.CreateModel(
            name="Event",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("at", models.DateTimeField()),
                ("recorded", models.DateTimeField(auto_now_add=True)),
                ("key", ExactCharField(max_length=255)),
                ("kind", models.CharField(max_length=16)),
                (
                    "outcome",
                    models.CharField(
                        choices=[
                            ("held", "Held, no end recorded"),
                            ("released", "Held and released"),
                            ("lost", "Held and lost"),
                            ("cut off", "Held and cut off"),
                            ("timed out", "Waited, and not granted"),
                            ("failed", "No answer, or refused"),
                            ("tried", "Tried, and not granted"),
                            ("deadlock", "Deadlock"),
                            ("stale", "Fenced write refused"),
                            ("refused", "Release refused"),
                            ("action", "Operator's action"),
                        ],
                        max_length=16,
                        verbose_name="What",
                    ),
                ),
                ("host", models.CharField(max_length=255)),
                ("pid", models.BigIntegerField(default=0)),
                ("work", models.CharField(max_length=255, verbose_name="Work")),
                ("by", models.CharField(max_length=255)),
                ("reason", models.CharField(max_length=255, verbose_name="Reason")),
                ("token", models.BigIntegerField(null=True)),
                ("session", models.BigIntegerField(null=True)),
                ("waited", models.FloatField(null=True)),
                ("held", models.FloatField(null=True)),
                ("count", models.IntegerField(default=1, verbose_name="×")),
            ],
            options={
                "verbose_name": "event of a lock",
                "verbose_name_plural": "history of the locks",
                "default_permissions": (),
                "indexes": [
                    models.Index(fields=["key", "at"], name="zklock_events_key"),
                    models.Index(fields=["outcome", "at"], name="zklock_events_outcome"),
                    models.Index(fields=["at"], name="zklock_events_at"),
                ],
            },
        ),
    ]
