"""The shop in Django's admin."""

from __future__ import annotations

from django.contrib import admin

from shop.models import AbortReceipt, Delivery, Item, Order


@admin.register(Item)
class ItemAdmin(admin.ModelAdmin):
    """Items and their stock."""

    list_display = ("sku", "stock")


@admin.register(Order)
class OrderAdmin(admin.ModelAdmin):
    """What was sold, and through which door."""

    list_display = ("ref", "item", "quantity", "channel", "created_at")
    list_filter = ("channel", "item")


@admin.register(Delivery)
class DeliveryAdmin(admin.ModelAdmin):
    """What came in."""

    list_display = ("ref", "item", "amount", "created_at")


@admin.register(AbortReceipt)
class AbortReceiptAdmin(admin.ModelAdmin):
    """Work that was stopped."""

    list_display = ("lock", "how", "stopped_after", "swallowed", "reason", "created_at")
