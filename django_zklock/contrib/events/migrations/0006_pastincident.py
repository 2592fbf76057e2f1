"""Make the table of incidents."""

from __future__ import annotations

from typing import ClassVar

from django.db import migrations, models


class Migration(migrations.Migration):
    """The table of incidents."""

    dependencies: ClassVar = [("zklock_events", "0005_exact_keys")]

    operations: ClassVar = [
        migrations.CreateModel(
            name="PastIncident",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("identity", models.CharField(max_length=40, unique=True)),
                ("cause", models.CharField(max_length=32)),
                ("keys", models.TextField()),
                ("texts", models.TextField()),
                ("at", models.DateTimeField()),
                ("seen_at", models.DateTimeField()),
                ("peak", models.IntegerField(default=0)),
                ("times", models.IntegerField(default=1)),
            ],
            options={
                "default_permissions": (),
                "indexes": [models.Index(fields=["seen_at"], name="zklock_events_incident")],
            },
        ),
    ]
