"""Compare names byte by byte on MySQL and MariaDB."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

from django.db import migrations

from django_zklock.fencing.model import make_exact


class Migration(migrations.Migration):
    """The first migration did not do so at first. Of names that were taken for equal, the first one keeps the token."""

    dependencies: ClassVar = [("zklock_fences", "0001_initial")]

    operations: ClassVar = [
        migrations.RunPython(
            partial(make_exact, "zklock_fences.Fence"),
            migrations.RunPython.noop,
            atomic=False,
            hints={"model_name": "fence"},
        ),
    ]
