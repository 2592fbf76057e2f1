"""The shop's data: items, deliveries and orders. The stock must be deliveries minus orders."""

from __future__ import annotations

from django.db import models

from django_zklock.fencing import FencedModel


class Item(FencedModel):
    """
    An article and how many are left.

    No constraint stops `stock` from being wrong: the lock does, and the fence refuses who lost it without knowing.
    """

    sku = models.SlugField(primary_key=True)
    stock = models.IntegerField(default=0)

    class Meta:
        ordering = ("sku",)

    def __str__(self) -> str:
        return self.sku


class Delivery(models.Model):
    """Goods that were delivered. `ref` makes a repeated request harmless."""

    item = models.ForeignKey(Item, on_delete=models.CASCADE, related_name="deliveries")
    amount = models.PositiveIntegerField()
    ref = models.CharField(max_length=64, unique=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        verbose_name_plural = "deliveries"

    def __str__(self) -> str:
        return f"{self.amount} x {self.item_id}"


class Order(models.Model):
    """Goods that were sold. `ref` makes a repeated request harmless; the work under the lock began at `began_at`."""

    item = models.ForeignKey(Item, on_delete=models.CASCADE, related_name="orders")
    quantity = models.PositiveIntegerField()
    channel = models.CharField(max_length=16)
    ref = models.CharField(max_length=64, unique=True)
    began_at = models.DateTimeField()
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("-created_at",)

    def __str__(self) -> str:
        return f"{self.quantity} x {self.item_id}"


class AbortReceipt(models.Model):
    """Work that was aborted because its lock could no longer be trusted."""

    lock = models.CharField(max_length=255)
    token = models.BigIntegerField()
    reason = models.TextField()
    how = models.CharField(max_length=16, blank=True)
    stopped_after = models.FloatField(help_text="Seconds from the abort to the end of the work.")
    swallowed = models.BooleanField()
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("-created_at",)

    def __str__(self) -> str:
        return f"{self.lock}: {self.reason}"
