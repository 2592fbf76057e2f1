"""Rows as the app of events would have recorded them."""

from __future__ import annotations

from datetime import timedelta

from django.utils import timezone

from django_zklock.contrib.events.models import Attempt


def remember(key: str) -> None:
    """Record some grants, of which one was lost, unless there are some."""
    if Attempt.objects.exists():
        return
    for number in range(12):
        row = Attempt(key=key, template="orders/{pk}", kind="lock", host=f"worker-{number % 3}", pid=812 + number)
        row.work, row.token, row.outcome = "shop.tasks.charge", number, Attempt.RELEASED
        row.at = timezone.now() - timedelta(minutes=12 - number)
        row.waited, row.held = number * 0.3, 1 + (number * 7) % 5
        if number == 8:
            row.outcome, row.reason = Attempt.LOST, "it was broken by anna: it hangs in the payment service"
        row.save()
