"""Read the shop's books: deliveries, orders, stock, and the receipts of aborts."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Sum
from shop.models import AbortReceipt, Delivery, Item, Order


@dataclass(frozen=True, slots=True)
class Shelf:
    """One item: its deliveries, its orders and its stock."""

    sku: str
    delivered: int
    sold: int
    stock: int

    @property
    def balances(self) -> bool:
        """True if the stock is deliveries minus orders, and not negative."""
        return self.delivered - self.sold == self.stock >= 0


def open_items(skus: Iterable[str], pieces: int) -> None:
    """Create new items."""
    for sku in skus:
        item = Item.objects.create(sku=sku, stock=pieces)
        Delivery.objects.create(item=item, amount=pieces, ref=uuid.uuid4().hex)


def shelves() -> list[Shelf]:
    """Return the current books of all items."""
    delivered = dict(Delivery.objects.values_list("item").annotate(Sum("amount")))
    sold = dict(Order.objects.values_list("item").annotate(Sum("quantity")))
    return [
        Shelf(item.sku, delivered.get(item.sku, 0), sold.get(item.sku, 0), item.stock) for item in Item.objects.all()
    ]


def orders(skus: Iterable[str]) -> int:
    """Count the orders for some items."""
    return Order.objects.filter(item__in=list(skus)).count()


def next_at_work(sku: str, after: datetime) -> datetime | None:
    """Return when the first purchase of an item after a moment began; None if there is none yet."""
    first = Order.objects.filter(item=sku, began_at__gt=after).order_by("began_at").first()
    return first.began_at if first is not None else None


def receipts() -> int:
    """Count the receipts of aborts."""
    return AbortReceipt.objects.count()
