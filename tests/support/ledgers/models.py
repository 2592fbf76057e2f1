"""Accounts, whose rows are fenced."""

from __future__ import annotations

from typing import Any

from django.db import models

from django_zklock.fencing import FencedManager, FencedModel, FencedQuerySet


class Bank(models.Model):
    name: models.Field[str, str] = models.CharField(max_length=20)
    open: models.Field[bool, bool] = models.BooleanField(default=True)

    def __str__(self) -> str:
        return self.name


class Account(FencedModel):
    name: models.Field[str, str] = models.CharField(max_length=20)
    balance: models.Field[int, int] = models.IntegerField(default=0)
    rate: models.Field[int, int] = models.IntegerField(default=0)
    bank: models.Field[Any, Any] = models.ForeignKey(Bank, null=True, on_delete=models.CASCADE)

    def __str__(self) -> str:
        return self.name


class OwnQuerySet(FencedQuerySet["Vault"]):
    def heavy(self) -> OwnQuerySet:
        heavy_rows: OwnQuerySet = self.filter(weight__gt=9)
        return heavy_rows


class Vault(FencedModel):
    weight: models.Field[int, int] = models.IntegerField(default=0)

    objects = FencedManager.from_queryset(OwnQuerySet)()


class Booking(models.Model):
    account: models.Field[Any, Any] = models.ForeignKey(Account, on_delete=models.CASCADE, related_name="bookings")
    amount: models.Field[int, int] = models.IntegerField()

    def __str__(self) -> str:
        return str(self.amount)
