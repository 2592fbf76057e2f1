"""Make the table of actions."""

from __future__ import annotations

from typing import ClassVar

from django.db import migrations, models

from django_zklock.fencing.model import ExactCharField


class Migration(migrations.Migration):
    """The table of actions. Projects from before it have the table of attempts already."""

    dependencies: ClassVar = [("zklock_events", "0001_initial")]

    operations: ClassVar = [
        migrations.CreateModel(
            name="OperatorAction",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("key", ExactCharField(max_length=255)),
                ("what", models.CharField(max_length=32)),
                ("by", models.CharField(max_length=255)),
                ("reason", models.TextField()),
                ("via", models.CharField(max_length=16)),
                ("at", models.DateTimeField()),
                ("sure", models.BooleanField(default=True)),
                ("holder", models.TextField()),
                ("token", models.BigIntegerField(null=True)),
                ("limit", models.IntegerField(null=True)),
                ("seconds", models.FloatField(null=True)),
            ],
            options={
                "default_permissions": (),
                "indexes": [models.Index(fields=["key", "at"], name="zklock_events_action")],
            },
        ),
    ]
