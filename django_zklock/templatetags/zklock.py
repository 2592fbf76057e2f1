"""The template tags of the dashboard."""

from __future__ import annotations

from datetime import datetime

from django import template

from django_zklock.dashboard.columns import age

register = template.Library()


@register.simple_tag
def zklock_age(seconds: float, since: datetime | None = None) -> str:
    """Return an age that the script of the page keeps up to date."""
    return age(seconds, since)
