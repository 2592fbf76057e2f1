"""Template tags of the dashboard: an age that the script of the page lets grow."""

from __future__ import annotations

from datetime import datetime

from django import template

from django_zklock.dashboard.columns import age

register = template.Library()


@register.simple_tag
def zklock_age(seconds: float, since: datetime | None = None) -> str:
    """Show an age in seconds as a text with its two greatest units."""
    return age(seconds, since)
