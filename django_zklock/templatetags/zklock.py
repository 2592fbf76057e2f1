"""The template tags of the dashboard."""

from __future__ import annotations

import re
from typing import Any, Final

from django import template
from django.contrib.admin.utils import quote
from django.urls import reverse
from django.utils.html import format_html, format_html_join

from django_zklock.report.formatting import (
    CONNECTION_LABELS,
    MAX_ERROR,
    age,
    age_of,
    clean,
    duration,
    key_text,
    kind_text,
    process_of,
    request_text,
    role_text,
    time_text,
    use_of,
)

_UUID: Final = re.compile(r"\b([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})\b")

register = template.Library()
register.filter("zklock_clean", clean)
register.filter("zklock_duration", duration)
register.filter("zklock_request", request_text)
register.filter("zklock_key", key_text)
register.filter("zklock_time", time_text)
register.filter("zklock_kind", kind_text)
register.filter("zklock_role", role_text)
register.filter("zklock_who", process_of)
register.filter("zklock_work", use_of)
register.simple_tag(age, name="zklock_age")
register.simple_tag(age_of, name="zklock_age_of")


@register.filter
def zklock_connection(state: str) -> object:
    """Return the label of a state of the connection."""
    return CONNECTION_LABELS[state]


@register.filter
def zklock_short(text: object) -> str:
    """Return a text with each UUID cut. The whole one is shown on focus, or below the mouse."""
    parts = _UUID.split(clean(text, MAX_ERROR))
    return format_html_join("", "{}{}", ((_short(part) if index % 2 else part, "") for index, part in enumerate(parts)))


def _short(uuid: str) -> str:
    return format_html('<span class="zklock-id" tabindex="0" title="{}">{}</span>', uuid, uuid[:8])


@register.simple_tag(takes_context=True)
def zklock_link(context: Any, key: str) -> str:
    """Return a link to the page of a lock, in the admin site of the present page."""
    site = context["request"].current_app
    return format_html(
        '<a href="{0}" title="{1}">{1}</a>',
        reverse("admin:zklock_lock_change", args=[quote(key)], current_app=site),
        key_text(key, 200),
    )
