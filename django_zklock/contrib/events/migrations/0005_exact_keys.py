"""Compare keys byte by byte on MySQL and MariaDB."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

from django.db import migrations

from django_zklock.fencing.model import make_exact


class Migration(migrations.Migration):
    """The first migration did not do so at first."""

    dependencies: ClassVar = [("zklock_events", "0004_attempt_missed_at_count")]

    operations: ClassVar = [
        migrations.RunPython(
            partial(make_exact, "zklock_events.Attempt"),
            migrations.RunPython.noop,
            atomic=False,
            hints={"model_name": "attempt"},
        ),
    ]
