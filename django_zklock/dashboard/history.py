"""Knows how what a person did to a lock gets into the admin's history."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from django.contrib.admin.models import CHANGE, LogEntry
from django.db import transaction

if TYPE_CHECKING:
    from django_zklock.models import Lock

log = logging.getLogger("django_zklock.dashboard")


def note(user: Any, lock: Lock, message: str) -> None:
    """
    Write down what was done; a database that fails is logged, and changes nothing of it.

    It is done by then, and the audit log has it: that one counts.
    """
    try:
        with transaction.atomic():
            LogEntry.objects.log_actions(user.pk, [lock], CHANGE, message, single_object=True)
    except Exception:
        log.exception("What was done to the lock %r is not in the history: %r", lock.key, message)
