"""Store a row for each lost lock: the reason, and how the work was stopped."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.db import connection
from django.dispatch import receiver

from django_zklock.signals import lock_lost
from shop.models import AbortReceipt

if TYPE_CHECKING:
    from django_zklock import Hold
    from django_zklock.core.locks.block import Receipt


@receiver(lock_lost)
def keep_receipt(sender: object, lock: str, hold: Hold, reason: str, receipt: Receipt | None, **_more: Any) -> None:
    """Store what happened to the work. Without an abort receipt, the work ended by itself at that moment."""
    try:
        AbortReceipt.objects.create(
            lock=lock,
            token=hold.token,
            reason=reason,
            how=receipt.how if receipt else "",
            stopped_after=receipt.stopped_after if receipt else 0.0,
            swallowed=receipt.swallowed if receipt else False,
        )
    finally:
        connection.close()  # signals run on their own thread, where no request closes the connection
