"""Fenced rows: fence, read, save, update and delete."""

from contextlib import nullcontext
from functools import partial

import pytest
from asgiref.sync import sync_to_async
from django.db import connections, models, transaction
from django.db.migrations.writer import MigrationWriter
from django.db.models.functions import Rank
from django.db.transaction import TransactionManagementError
from django.test import TestCase
from django.test.utils import CaptureQueriesContext, isolate_apps
from support.databases import on_read_committed
from support.ledgers.models import Account, Bank, Booking, Vault
from support.work import FixedFence, run_in_thread

from django_zklock.exceptions import StaleToken
from django_zklock.fencing import FencedModel, FencedRows


def account(using, **fields):
    made = Account(**{"name": "a", **fields})
    made.save(using=using)
    return made


def token(using, pk):
    stored = Account.objects.using(using).get(pk=pk).fencing_token
    return stored


def test_a_fence_is_one_statement_before_any_read(ledger):
    row = account(ledger)
    with transaction.atomic(using=ledger), CaptureQueriesContext(connections[ledger]) as queries:
        row.fence(FixedFence(3))
    assert row.fencing_token == 3
    (statement,) = [query["sql"] for query in queries if not query["sql"].startswith(("BEGIN", "COMMIT"))]
    assert statement.startswith("UPDATE")
    assert token(ledger, row.pk) == 3


def test_an_older_token_is_refused(ledger):
    row = account(ledger, fencing_token=5)
    refused = pytest.raises(StaleToken, match=r"ledgers\.Account \d+ has seen the token 5, and this is 4")
    with refused as caught, transaction.atomic(using=ledger):
        Account.objects.using(ledger).update(balance=7)
        row.fence(FixedFence(4))
    assert caught.value.lock == "k"
    row.refresh_from_db()
    assert (row.balance, row.fencing_token) == (0, 5)


def test_a_missing_row_cannot_be_fenced(ledger):
    row, fence = account(ledger), FixedFence(1)
    Account.objects.using(ledger).all().delete()
    for refused in (
        lambda: row.fence(fence),
        lambda: Account.objects.using(ledger).fenced(fence).get(pk=row.pk),
        lambda: Account().fence(fence, using=ledger),
    ):
        with transaction.atomic(using=ledger), pytest.raises(Account.DoesNotExist):
            refused()


def test_a_fence_outside_of_a_transaction_is_refused(ledger):
    """The row would be unlocked at once. The error says what to do."""
    row = account(ledger)
    with pytest.raises(TransactionManagementError, match=r"with transaction\.atomic\(using='ledger-\d+'\)"):
        row.fence(FixedFence(1))
    with pytest.raises(TransactionManagementError):
        Account.objects.using(ledger).fenced(FixedFence(1)).get(pk=row.pk)
    assert token(ledger, row.pk) == 0


class Cases(TestCase):
    def test_the_transaction_of_a_test_case_does_not_count(self):
        """A test must not pass if the code would fail outside of it."""
        row = account("default")
        with pytest.raises(TransactionManagementError):
            row.fence(FixedFence(1))
        with transaction.atomic():
            row.fence(FixedFence(1))
        row.save_fenced(FixedFence(2))


def test_get_fences_before_it_reads(ledger):
    row = account(ledger, balance=7)
    with transaction.atomic(using=ledger), CaptureQueriesContext(connections[ledger]) as queries:
        fenced = Account.objects.using(ledger).fenced(FixedFence(3)).get(pk=row.pk)
    assert (fenced.balance, fenced.fencing_token) == (7, 3)
    verbs = [query["sql"].split()[0] for query in queries if "ledgers" in query["sql"]]
    assert verbs == ["UPDATE", "SELECT"]
    with transaction.atomic(using=ledger), pytest.raises(StaleToken):
        Account.objects.using(ledger).fenced(FixedFence(2)).get(pk=row.pk)


def test_get_of_several_rows_is_refused_as_always(ledger):
    account(ledger), account(ledger)
    for lookup in ({"name": "a"}, {"name": "a", "bank__name": None}):
        with transaction.atomic(using=ledger), pytest.raises(Account.MultipleObjectsReturned):
            Account.objects.using(ledger).fenced(FixedFence(3)).get(**lookup)


def test_a_plain_save_never_writes_an_older_token_back(ledger):
    """The admin, or code without locks, may save values that it read long ago."""
    row = account(ledger)
    Account.objects.using(ledger).fenced(FixedFence(9)).update(balance=1)
    row.name = "b"
    row.save()
    row.save(update_fields=["fencing_token", "name"])
    assert token(ledger, row.pk) == 9
    row.refresh_from_db()
    assert (row.name, row.fencing_token) == ("b", 9)


def test_save_fenced_writes_as_the_newest_holder_only(ledger):
    row = Account(name="a", balance=1)
    row.save_fenced(FixedFence(5), using=ledger)
    assert (row.fencing_token, token(ledger, row.pk)) == (5, 5)
    row.balance = 2
    with pytest.raises(StaleToken):
        row.save_fenced(FixedFence(4))
    assert row.fencing_token == 5
    row.refresh_from_db()
    assert row.balance == 1
    row.balance, row.name = 3, "b"
    row.save_fenced(FixedFence(6), update_fields=["balance"])
    row.refresh_from_db()
    assert (row.balance, row.name, row.fencing_token) == (3, "a", 6)


def test_a_new_instance_with_an_existing_primary_key_is_fenced(ledger):
    row = account(ledger, fencing_token=5)
    again = Account(pk=row.pk, name="again")
    with pytest.raises(StaleToken):
        again.save_fenced(FixedFence(4), using=ledger)
    again.save_fenced(FixedFence(6), using=ledger)
    row.refresh_from_db()
    assert (row.name, row.fencing_token) == ("again", 6)


@on_read_committed
@pytest.mark.parametrize(("theirs", "refused"), [(9, True), (1, False)])
def test_a_row_that_is_inserted_meanwhile_is_fenced(ledger, theirs, refused):
    """Another holder may insert the row between the check and the insert, unless the check locks the gap."""
    rows = Account.objects.using(ledger)

    def insert():
        rows.bulk_create([Account(pk=77, name="theirs", fencing_token=theirs)])
        connections[ledger].close()

    def insert_first(sender, **kwargs):
        if not rows.exists():
            run_in_thread(insert)

    new = Account(pk=77, name="mine")
    models.signals.pre_save.connect(insert_first, sender=Account)
    try:
        with pytest.raises(StaleToken) if refused else nullcontext():
            new.save_fenced(FixedFence(5), using=ledger)
    finally:
        models.signals.pre_save.disconnect(insert_first, sender=Account)
    row = rows.get()
    assert (row.name, row.fencing_token, new.fencing_token) == (("theirs", 9, 0) if refused else ("mine", 5, 5))


def test_update_is_one_statement_with_the_fence_in_it(ledger):
    first, second = account(ledger, fencing_token=1), account(ledger, fencing_token=3)
    rows = Account.objects.using(ledger).filter(balance=0).fenced(FixedFence(3))
    with CaptureQueriesContext(connections[ledger]) as queries:
        assert rows.update(balance=models.F("balance") + 2) == 2
    assert [query["sql"].split()[0] for query in queries if "ledgers" in query["sql"]] == ["UPDATE", "SELECT"]
    for row in (first, second):
        row.refresh_from_db()
        assert (row.balance, row.fencing_token) == (2, 3)


def test_update_writes_all_rows_or_none(ledger):
    account(ledger, fencing_token=1), account(ledger, fencing_token=4)
    with pytest.raises(StaleToken, match="seen the token 4, and this is 3"):
        Account.objects.using(ledger).fenced(FixedFence(3)).update(balance=9)
    rows = Account.objects.using(ledger).order_by("pk")
    assert list(rows.values_list("balance", "fencing_token")) == [(0, 1), (0, 4)]


def test_rows_selected_by_a_join_are_fenced(ledger):
    bank = Bank(name="b")
    bank.save(using=ledger)
    mine, other = account(ledger, bank=bank), account(ledger)
    joined = Account.objects.using(ledger).filter(bank__name="b")
    assert joined.fenced(FixedFence(3)).update(balance=1) == 1
    assert (token(ledger, mine.pk), token(ledger, other.pk)) == (3, 0)
    with transaction.atomic(using=ledger):
        assert joined.fenced(FixedFence(4)).get().balance == 1
    with pytest.raises(StaleToken):
        joined.fenced(FixedFence(3)).update(balance=2)
    with pytest.raises(StaleToken), transaction.atomic(using=ledger):
        joined.fenced(FixedFence(3)).get()
    counted = Account.objects.using(ledger).annotate(n=models.Count("bookings")).filter(n=0)
    assert counted.fenced(FixedFence(5)).update(balance=5) == 2
    with transaction.atomic(using=ledger):
        assert counted.fenced(FixedFence(6)).get(pk=mine.pk).fencing_token == 6


@isolate_apps("support.ledgers")
def test_a_model_in_several_tables_is_refused():
    class Savings(Account):
        class Meta:
            app_label = "ledgers"

    class Labelled(Bank, FencedModel):
        class Meta:
            app_label = "ledgers"

    fence = FixedFence(1)
    for model in (Savings, Labelled):
        assert "zklock.E018" in [problem.id for problem in model.check()]
        row = model(pk=1, name="a")
        rows = partial(FencedRows, models.QuerySet(model))
        for use in (row.save_fenced, row.fence, rows):
            with pytest.raises(TypeError, match=r"cannot be fenced.* it inherits the table of ledgers\.(Account|Bank)"):
                use(fence)

    class Proxy(Account):
        class Meta:
            app_label = "ledgers"
            proxy = True

    for in_one_table in (Account, Vault, Proxy):
        assert "zklock.E018" not in [problem.id for problem in in_one_table.check()]


def test_a_project_may_have_its_own_manager(ledger):
    row = Vault(weight=10)
    row.save_fenced(FixedFence(2), using=ledger)
    heavy = Vault.objects.using(ledger).heavy()
    assert heavy.fenced(FixedFence(3)).update(weight=11) == 1
    with pytest.raises(StaleToken):
        heavy.fenced(FixedFence(2)).update(weight=1)
    assert Vault.objects.using(ledger).get().weight == 11


def test_delete_includes_dependent_rows(ledger):
    row = account(ledger)
    account(ledger, fencing_token=5)
    Booking(account=row, amount=1).save(using=ledger)
    everything = Account.objects.using(ledger)
    with pytest.raises(StaleToken):
        everything.fenced(FixedFence(4)).delete()
    assert everything.count() == 2
    deleted = {"ledgers.Booking": 1, "ledgers.Account": 2}
    assert everything.filter(balance=0).fenced(FixedFence(5)).delete() == (3, deleted)


def test_many_rows_are_fenced(ledger):
    Account.objects.using(ledger).bulk_create(Account(name="n") for _ in range(1200))
    everything = Account.objects.using(ledger)
    assert everything.filter(bookings=None).fenced(FixedFence(2)).update(balance=1) == 1200
    assert everything.fenced(FixedFence(2)).delete()[0] == 1200


def test_a_query_that_cannot_be_fenced_is_refused(ledger):
    """For example slices: it would be unclear which rows are fenced."""
    rows = Account.objects.using(ledger)
    ranked = rows.annotate(rank=models.Window(Rank(), order_by="balance")).filter(rank=1)
    for refused in (rows.all()[:1], rows.all().union(rows.all()), ranked):
        with pytest.raises(TypeError, match="cannot be fenced"):
            refused.fenced(FixedFence(1))
    with pytest.raises(TypeError, match="set by the fence"):
        rows.fenced(FixedFence(1)).update(fencing_token=5)
    assert not hasattr(rows.fenced(FixedFence(1)), "filter")


def test_a_migration_names_a_plain_field():
    """The migrations of a project do not need this package."""
    field = Account._meta.get_field("fencing_token")
    text, imports = MigrationWriter.serialize(field)
    assert text == "models.BigIntegerField(default=0, editable=False)"
    assert imports == {"from django.db import models"}


async def test_the_async_methods_fence_and_refuse_like_the_sync_ones(ledger):
    row = await sync_to_async(account)(ledger)
    row.balance = 1
    await row.asave_fenced(FixedFence(2))
    rows = Account.objects.using(ledger)
    assert await rows.fenced(FixedFence(3)).aupdate(balance=2) == 1
    for call in (rows.fenced(FixedFence(3)).aget(pk=row.pk), row.afence(FixedFence(3))):
        with pytest.raises(TransactionManagementError):
            await call
    with pytest.raises(StaleToken):
        await rows.fenced(FixedFence(2)).adelete()
    assert (await rows.fenced(FixedFence(3)).adelete())[0] == 1
    await sync_to_async(connections.close_all)()
