"""Keeps a row for every time that work was stopped because its lock was lost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.db import connection
from django.dispatch import receiver

from django_zklock.signals import lock_lost
from shop.models import AbortReceipt

if TYPE_CHECKING:
    from django_zklock import Hold
    from django_zklock.locks.guard import Receipt


@receiver(lock_lost)
def keep_receipt(sender: object, lock: str, hold: Hold, receipt: Receipt | None, **_more: Any) -> None:
    """Write down what became of the work; a lock that was lost while nothing ran under it needs no receipt."""
    if receipt is None:
        return
    try:
        AbortReceipt.objects.create(
            lock=lock,
            token=hold.token,
            reason=receipt.reason,
            how=receipt.how,
            stopped_after=receipt.stopped_after,
            swallowed=receipt.swallowed,
        )
    finally:
        connection.close()  # signals come on a thread of their own, which no request ever ends
