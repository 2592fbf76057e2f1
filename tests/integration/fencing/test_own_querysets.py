"""A fenced operation is the operation of the project's own queryset, and the fence."""

import pytest
from django.db import models, transaction
from support.ledgers.models import Invoice, Line
from support.work import FixedFence

from django_zklock.exceptions import StaleToken

OLD, NOW = FixedFence(3), FixedFence(5)


def invoice(using, **fields):
    made = Invoice(**fields)
    made.save(using=using)
    return made


def stored(using, **lookup):
    """Return how often the project's `update` has written a row, its token, and whether it is marked."""
    row = Invoice.everything.using(using).get(**lookup)
    return row.writes, row.fencing_token, row.removed


def test_a_fenced_delete_marks_rows_if_the_project_marks_them(ledger):
    row = invoice(ledger)
    Line(invoice=row).save(using=ledger)
    assert Invoice.objects.using(ledger).fenced(NOW).delete() == 1
    assert stored(ledger) == (1, 5, True)
    assert Line.objects.using(ledger).count() == 1


def test_a_delete_that_the_project_refuses_changes_nothing(ledger):
    invoice(ledger)
    paid = invoice(ledger, paid=True)
    with pytest.raises(models.ProtectedError):
        Invoice.objects.using(ledger).fenced(NOW).delete()
    assert stored(ledger, pk=paid.pk) == stored(ledger, paid=False) == (0, 0, False)


def test_rows_that_the_project_hides_are_neither_read_nor_written(ledger):
    hidden, row = invoice(ledger, removed=True), invoice(ledger)
    rows = Invoice.objects.using(ledger)
    with transaction.atomic(using=ledger):
        assert rows.fenced(NOW).get() == row
        with pytest.raises(Invoice.DoesNotExist):
            rows.fenced(NOW).get(pk=hidden.pk)
    assert rows.fenced(NOW).update(paid=False) == 1
    assert rows.fenced(NOW).delete() == 1
    assert stored(ledger, pk=hidden.pk) == (0, 0, True)


@pytest.mark.parametrize("operation", ["get", "update", "delete"])
def test_a_stale_holder_is_refused_before_the_project_writes(ledger, operation):
    invoice(ledger, fencing_token=NOW.token)
    rows = Invoice.objects.using(ledger).fenced(OLD)
    with pytest.raises(StaleToken), transaction.atomic(using=ledger):
        rows.update(paid=True) if operation == "update" else getattr(rows, operation)()
    assert stored(ledger) == (0, 5, False)
