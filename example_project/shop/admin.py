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
    """Orders, with the view or task that sold them."""

    list_display = ("ref", "item", "quantity", "channel", "created_at")
    list_filter = ("channel", "item")


@admin.register(Delivery)
class DeliveryAdmin(admin.ModelAdmin):
    """Deliveries."""

    list_display = ("ref", "item", "amount", "created_at")


@admin.register(AbortReceipt)
class AbortReceiptAdmin(admin.ModelAdmin):
    """Receipts of aborted work."""

    list_display = ("lock", "how", "stopped_after", "swallowed", "reason", "created_at")
