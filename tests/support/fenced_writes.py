"""Ways to write an account as the holder of a fence, each in a transaction of its own."""

import time

from django.db import transaction

from support.ledgers.models import Account


def by_get(using, fence, pk):
    with transaction.atomic(using=using):
        row = Account.objects.using(using).fenced(fence).get(pk=pk)
        work(row)
        row.save()


def by_fence(using, fence, pk):
    row = Account.objects.using(using).get(pk=pk)
    with transaction.atomic(using=using):
        row.fence(fence, refresh=True)
        work(row)
        row.save()


def by_join(using, fence, pk):
    with transaction.atomic(using=using):
        row = Account.objects.using(using).filter(bookings=None).fenced(fence).get(pk=pk)
        work(row)
        row.save()


def work(row):
    row.balance += 1
    time.sleep(0.001)  # as long as thinking takes, so that others come


def update(using, fence, pk):
    Account.objects.using(using).filter(pk=pk).fenced(fence).update(balance=777)


def update_by_join(using, fence, pk):
    Account.objects.using(using).filter(pk=pk, bookings=None).fenced(fence).update(balance=777)


def save(using, fence, pk):
    Account(pk=pk, name="a", balance=777, rate=777).save_fenced(fence, using=using)


def delete(using, fence, pk):
    Account.objects.using(using).filter(pk=pk).fenced(fence).delete()


WAYS = [by_get, by_fence, by_join, update, update_by_join, save, delete]
