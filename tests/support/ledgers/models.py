"""Accounts, whose rows are fenced."""

from __future__ import annotations

from typing import Any

from django.db import models
from django.db.models.sql import Query

from django_zklock.fencing import FencedManager, FencedModel, FencedQuerySet


class Bank(models.Model):
    name: models.Field[str, str] = models.CharField(max_length=20)
    open: models.Field[bool, bool] = models.BooleanField(default=True)

    def __str__(self):
        return self.name


class Account(FencedModel):
    name: models.Field[str, str] = models.CharField(max_length=20)
    balance: models.Field[int, int] = models.IntegerField(default=0)
    rate: models.Field[int, int] = models.IntegerField(default=0)
    bank: models.Field[Any, Any] = models.ForeignKey(Bank, null=True, on_delete=models.CASCADE)

    def __str__(self):
        return self.name


class OwnQuerySet(FencedQuerySet["Vault"]):
    def heavy(self):
        heavy_rows = self.filter(weight__gt=9)
        return heavy_rows


class Vault(FencedModel):
    weight: models.Field[int, int] = models.IntegerField(default=0)

    objects = FencedManager.from_queryset(OwnQuerySet)()


class KeptQuery(Query):
    """Leaves out removed rows when it is compiled, as some packages for soft deletion do: an UPDATE then finds them."""

    def get_compiler(self, *args, **kwargs):
        if self.can_filter():
            self.add_q(models.Q(removed=False))
        return super().get_compiler(*args, **kwargs)


class InvoiceQuerySet(FencedQuerySet["Invoice"]):
    """Marks rows instead of deleting them, counts what it writes, and leaves invoices alone that are paid."""

    def __init__(self, model=None, query=None, using=None, hints=None):
        super().__init__(model, query or KeptQuery(model), using, hints)

    def update(self, **fields):
        return super().update(**{"writes": models.F("writes") + 1, **fields})

    def delete(self):
        paid = self.filter(paid=True)
        if paid:
            raise models.ProtectedError("A paid invoice is kept.", set(paid))
        return self.update(removed=True)


class Invoice(FencedModel):
    writes: models.Field[int, int] = models.IntegerField(default=0)
    removed: models.Field[bool, bool] = models.BooleanField(default=False)
    paid: models.Field[bool, bool] = models.BooleanField(default=False)

    objects = FencedManager.from_queryset(InvoiceQuerySet)()
    everything: models.Manager[Any] = models.Manager()


class Line(models.Model):
    invoice: models.Field[Any, Any] = models.ForeignKey(Invoice, on_delete=models.CASCADE)

    def __str__(self):
        return str(self.pk)


class Booking(models.Model):
    account: models.Field[Any, Any] = models.ForeignKey(Account, on_delete=models.CASCADE, related_name="bookings")
    amount: models.Field[int, int] = models.IntegerField()

    def __str__(self):
        return str(self.amount)
