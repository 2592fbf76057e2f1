"""
Change the stock: read it, think, write it back. Callers hold the lock of the item, or two sell the same piece.

The lock keeps two from thinking at a time. The fence, first thing in the transaction, keeps out who has lost it since.
"""

from __future__ import annotations

import asyncio
import time
from datetime import datetime
from typing import TYPE_CHECKING

from asgiref.sync import sync_to_async
from django.conf import settings
from django.db import transaction
from django.utils import timezone

from shop.locking import hold
from shop.models import Delivery, Item, Order

if TYPE_CHECKING:
    from django_zklock import Hold


class SoldOut(Exception):
    """Too few are left."""


def sell(sku: str, quantity: int, *, ref: str, channel: str) -> Order:
    """Sell `quantity` of an item. The same `ref` sells once, however often it is requested."""
    began_at = timezone.now()
    if done := Order.objects.filter(ref=ref).first():
        return done
    item = read(sku, quantity)
    time.sleep(settings.SHOP_THINK_TIME)  # the customer's card is being charged
    return write_sale(item, quantity, ref, channel, began_at, hold())


async def asell(sku: str, quantity: int, *, ref: str, channel: str) -> Order:
    """Sell from async code; see `sell`."""
    began_at = timezone.now()
    if done := await Order.objects.filter(ref=ref).afirst():
        return done
    item = await sync_to_async(read)(sku, quantity)
    await asyncio.sleep(settings.SHOP_THINK_TIME)
    return await sync_to_async(write_sale)(item, quantity, ref, channel, began_at, hold())


def receive(sku: str, amount: int, *, ref: str) -> Item:
    """Add a delivery to the stock. The same `ref` counts once."""
    item = Item.objects.get(pk=sku)
    if Delivery.objects.filter(ref=ref).exists():
        return item
    time.sleep(settings.SHOP_THINK_TIME)  # somebody counts the boxes
    with transaction.atomic():
        item = fenced(item, hold())
        item.stock += amount
        Delivery.objects.create(item=item, amount=amount, ref=ref)
        item.save(update_fields=["stock"])
    return item


def read(sku: str, quantity: int) -> Item:
    """Read an item, and raise `SoldOut` if too few are left."""
    item = Item.objects.get(pk=sku)
    if item.stock < quantity:
        raise SoldOut(sku)
    return item


def write_sale(item: Item, quantity: int, ref: str, channel: str, began_at: datetime, under: Hold | None) -> Order:
    """
    Write the order and the new stock, in one transaction that is the last step of a purchase.

    An abort before it leaves nothing behind; an abort within it rolls both back. Who lost the lock and does not know it
    yet, as after a pause, is refused by the fence: `StaleToken`.
    """
    with transaction.atomic():
        item = fenced(item, under)
        if item.stock < quantity:
            raise SoldOut(item.sku)
        item.stock -= quantity
        order = Order.objects.create(item=item, quantity=quantity, channel=channel, ref=ref, began_at=began_at)
        item.save(update_fields=["stock"])
    return order


def fenced(item: Item, under: Hold | None) -> Item:
    """Return the current item, locked until the end of the transaction; without locks, return it unchanged."""
    return item if under is None else Item.objects.fenced(under).get(pk=item.pk)
