"""Make the table."""

from __future__ import annotations

from typing import ClassVar

from django.db import migrations, models
from django.db.migrations.operations.base import Operation

from django_zklock.fencing.model import ExactCharField


class Migration(migrations.Migration):
    """The table of attempts."""

    initial = True

    dependencies: ClassVar[list[tuple[str, str]]] = []

    operations: ClassVar[list[Operation]] = [
        migrations.CreateModel(
            name="Attempt",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("key", ExactCharField(max_length=255)),
                ("template", ExactCharField(max_length=255)),
                ("kind", models.CharField(max_length=16)),
                ("host", models.CharField(max_length=255)),
                ("pid", models.BigIntegerField()),
                ("work", models.CharField(max_length=255)),
                ("token", models.BigIntegerField(null=True)),
                ("at", models.DateTimeField()),
                ("waited", models.FloatField(null=True)),
                ("held", models.FloatField(null=True)),
                ("outcome", models.CharField(max_length=16)),
                ("reason", models.CharField(max_length=255)),
            ],
            options={
                "default_permissions": (),
                "indexes": [
                    models.Index(fields=["key", "at"], name="zklock_events_key"),
                    models.Index(fields=["template", "at"], name="zklock_events_template"),
                    models.Index(condition=models.Q(("outcome", "lost")), fields=["at"], name="zklock_events_lost"),
                ],
            },
        ),
    ]
