"""Make the table."""

from __future__ import annotations

from typing import ClassVar

from django.db import migrations, models
from django.db.migrations.operations.base import Operation

from django_zklock.fencing.model import ExactCharField


class Migration(migrations.Migration):
    """The table of fences."""

    initial = True

    dependencies: ClassVar[list[tuple[str, str]]] = []

    operations: ClassVar[list[Operation]] = [
        migrations.CreateModel(
            name="Fence",
            fields=[
                ("name", ExactCharField(max_length=255, primary_key=True, serialize=False)),
                ("token", models.BigIntegerField(default=0, editable=False)),
            ],
            options={"verbose_name": "fence", "verbose_name_plural": "fences"},
        ),
    ]
