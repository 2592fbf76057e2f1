"""The table of fences."""

from __future__ import annotations

from django.db import models

from django_zklock.fencing.model import ExactCharField, FencingTokenField


class Fence(models.Model):
    """The highest token of one name. `rows.advance` writes it, and inserts the row if it is missing."""

    name: models.Field[str, str] = ExactCharField(max_length=255, primary_key=True)
    token: models.Field[int, int] = FencingTokenField()

    class Meta:
        """Names for the admin."""

        verbose_name = "fence"
        verbose_name_plural = "fences"

    def __str__(self) -> str:
        return self.name
