"""The highest token of a lock that each item has seen."""

# ruff: noqa: RUF012

from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("shop", "0001_initial")]

    operations = [
        migrations.AddField(
            model_name="item",
            name="fencing_token",
            field=models.BigIntegerField(default=0, editable=False),
        ),
    ]
