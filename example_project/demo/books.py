"""Reads the shop's books: what came in, what went out, what is on the shelf, and which aborts left a receipt."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Sum
from shop.models import AbortReceipt, Delivery, Item, Order


@dataclass(frozen=True, slots=True)
class Shelf:
    """One item: what its ledgers say, and what its stock says."""

    sku: str
    delivered: int
    sold: int
    stock: int

    @property
    def balances(self) -> bool:
        """True if the stock is what is left of the deliveries, and not less than nothing."""
        return self.delivered - self.sold == self.stock >= 0


def open_items(skus: Iterable[str], pieces: int) -> None:
    """Put new items on the shelf."""
    for sku in skus:
        item = Item.objects.create(sku=sku, stock=pieces)
        Delivery.objects.create(item=item, amount=pieces, ref=uuid.uuid4().hex)


def shelves() -> list[Shelf]:
    """Return all items as the books have them now."""
    delivered = dict(Delivery.objects.values_list("item").annotate(Sum("amount")))
    sold = dict(Order.objects.values_list("item").annotate(Sum("quantity")))
    return [
        Shelf(item.sku, delivered.get(item.sku, 0), sold.get(item.sku, 0), item.stock) for item in Item.objects.all()
    ]


def orders(skus: Iterable[str]) -> int:
    """Count the orders for some items."""
    return Order.objects.filter(item__in=list(skus)).count()


def next_at_work(sku: str, after: datetime) -> datetime | None:
    """Return when the first purchase of an item began that began after a moment; None if there is none yet."""
    first = Order.objects.filter(item=sku, began_at__gt=after).order_by("began_at").first()
    return first.began_at if first is not None else None


def receipts() -> int:
    """Count the receipts of aborts."""
    return AbortReceipt.objects.count()
