"""Writes without a fence, of whatever kind, never lower the token of a row."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from django.core import serializers
from django.db import connections, models
from django.test.utils import isolate_apps
from support.ledgers.models import Account
from support.work import FixedFence

from django_zklock.contrib.fences.models import Fence
from django_zklock.contrib.fences.rows import try_advance
from django_zklock.exceptions import StaleToken
from django_zklock.fencing import FencedModel

OUTDATED, PAUSED, NEWEST = 10, FixedFence(20), FixedFence(30)

Write = Callable[[str, Account], object]


def save(using, row):
    row.save(using=using)


def save_raw(using, row):
    """As `loaddata` does, and `revert()` of django-reversion."""
    for loaded in serializers.deserialize("json", serializers.serialize("json", [row]), using=using):
        loaded.save(using=using)


def update(using, row):
    Account.objects.using(using).update(fencing_token=row.fencing_token, balance=row.balance)


def update_by_expression(using, row):
    Account.objects.using(using).update(fencing_token=models.F("fencing_token") - 5, balance=row.balance)


def bulk_update(using, row):
    Account.objects.using(using).bulk_update([row], ["fencing_token", "balance"])


def plain(using):
    return models.QuerySet(Account, using=using)


def bulk_update_of_another_queryset(using, row):
    plain(using).bulk_update([row], ["fencing_token", "balance"])


def upsert(using, row):
    fields = ["fencing_token", "balance"]
    rows = Account.objects.using(using)
    rows.bulk_create([row], update_conflicts=True, update_fields=fields, unique_fields=unique_fields(using))


def unique_fields(using):
    return None if connections[using].vendor == "mysql" else ["id"]


WRITES = [save, save_raw, update, update_by_expression, bulk_update, bulk_update_of_another_queryset, upsert]


@pytest.mark.parametrize("write", WRITES)
def test_an_outdated_object_is_written_without_its_token(ledger, write):
    row = Account(name="a", balance=7, fencing_token=OUTDATED)
    row.save(using=ledger)
    Account.objects.using(ledger).fenced(NEWEST).update(balance=0)
    write(ledger, row)
    row = Account.objects.using(ledger).get()
    assert (row.balance, row.fencing_token) == (7, 30)
    with pytest.raises(StaleToken):
        Account.objects.using(ledger).fenced(PAUSED).update(balance=1)


@pytest.mark.parametrize("write", [update, bulk_update, bulk_update_of_another_queryset])
def test_a_token_may_be_raised(ledger, write):
    row = Account(name="a", fencing_token=OUTDATED)
    row.save(using=ledger)
    row.fencing_token = NEWEST.token
    write(ledger, row)
    assert Account.objects.using(ledger).get().fencing_token == 30


def test_an_upsert_of_another_queryset_must_leave_the_token_out(ledger):
    """Its SQL sets the columns to the new values, and no field can change that."""
    row = Account(name="a", fencing_token=NEWEST.token)
    row.save(using=ledger)
    rows, unique = plain(ledger), unique_fields(ledger)
    with pytest.raises(TypeError, match=r"leave fencing_token out of the `update_fields`"):
        rows.bulk_create([row], update_conflicts=True, update_fields=["fencing_token"], unique_fields=unique)
    row.fencing_token, row.balance = OUTDATED, 7
    rows.bulk_create([row], update_conflicts=True, update_fields=["balance"], unique_fields=unique)
    row = rows.get()
    assert (row.balance, row.fencing_token) == (7, 30)


def test_the_fences_of_names_never_fall(ledger):
    assert try_advance("books", NEWEST.token, ledger) is None
    outdated = Fence(name="books", token=OUTDATED)
    for loaded in serializers.deserialize("json", serializers.serialize("json", [outdated]), using=ledger):
        loaded.save(using=ledger)
    Fence.objects.using(ledger).update(token=OUTDATED)
    Fence.objects.using(ledger).bulk_update([outdated], ["token"])
    assert try_advance("books", PAUSED.token, ledger) == 30


@isolate_apps("support.ledgers")
def test_a_model_with_a_token_of_its_own_kind_is_refused_by_a_check():
    class Savings(FencedModel):
        fencing_token: models.Field[int, int] = models.BigIntegerField(default=0)

        class Meta:
            app_label = "ledgers"

    assert "zklock.E018" in [problem.id for problem in Savings.check()]
