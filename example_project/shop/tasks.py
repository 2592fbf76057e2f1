"""The shop's Celery tasks. If a worker is killed, its task is delivered again; `ref` prevents a second sale."""

from __future__ import annotations

from typing import Any

from celery import shared_task

from shop import inventory
from shop.locking import locked


@shared_task(bind=True, acks_late=True, reject_on_worker_lost=True)
@locked("inventory", timeout=3)
def process_order(self: Any, sku: str, quantity: int = 1, ref: str = "") -> str:
    """Sell an item. Wait up to 3 s for the lock, then free the worker and retry later."""
    try:
        inventory.sell(sku, quantity, ref=ref or self.request.id, channel="task")
    except inventory.SoldOut:
        return "sold out"
    return "sold"


@shared_task(bind=True, acks_late=True, reject_on_worker_lost=True)
@locked("inventory", timeout=1, on_conflict="retry", abort_on="lost")
def restock(self: Any, sku: str, amount: int, ref: str = "") -> int:
    """Receive a delivery. Continue during a short disconnection, whatever `grace` the settings give this lock."""
    return inventory.receive(sku, amount, ref=ref or self.request.id).stock
