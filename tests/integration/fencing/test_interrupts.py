"""An exception from outside (soft time limit, Ctrl-C, abort) leaves no transaction open."""

import gc
import inspect
import linecache
import random
from contextlib import suppress

import pytest
from django.db import DatabaseError, connections, transaction
from support.ledgers.models import Account
from support.strike import LineStrike, Struck, functions_of, strides
from support.work import FixedFence

from django_zklock.contrib.fences import block, rows
from django_zklock.contrib.fences.block import FencedBlock
from django_zklock.fencing import fence, model, row_tokens
from django_zklock.fencing import queryset as fenced_rows


class Strike(LineStrike):
    """
    Spares the second look at a `with` line, on the way out of its block.

    No handler of a signal runs there. One that runs at the first instruction of Django's own `Atomic.__exit__` leaves
    the transaction open, with us as with any `with atomic()`.
    """

    def __init__(self, functions, at):
        super().__init__(functions, at)
        self._inside = set()

    def _on_call(self, frame, event, argument):
        if not frame.f_code.co_flags & inspect.CO_GENERATOR:  # which is called each time that it goes on
            self._inside = {frame_and_line for frame_and_line in self._inside if frame_and_line[0] != id(frame)}
        return super()._on_call(frame, event, argument)

    def _on_line(self, frame, event, argument):
        frame_and_line = (id(frame), frame.f_lineno)
        if event == "line" and linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip().startswith("with "):
            if frame_and_line in self._inside:
                return self._on_line
            self._inside.add(frame_and_line)
        return super()._on_line(frame, event, argument)


def in_a_block(using, token):
    with FencedBlock(FixedFence(token), "books", using):
        Account.objects.using(using).update(balance=token)


def save(using, token):
    row = Account.objects.using(using).get()
    row.balance = token
    row.save_fenced(FixedFence(token))


def update(using, token):
    Account.objects.using(using).fenced(FixedFence(token)).update(balance=token)


def update_by_join(using, token):
    Account.objects.using(using).filter(bookings=None).fenced(FixedFence(token)).update(balance=token)


@pytest.mark.timeout(120)
@strides
@pytest.mark.parametrize("work", [in_a_block, save, update, update_by_join])
def test_an_exception_at_any_line_ends_the_transaction(ledger, work, stride):
    Account(name="a").save(using=ledger)
    functions = functions_of(block, rows, fence, model, row_tokens, fenced_rows)
    work(ledger, 1)
    at = random.randrange(stride)
    while True:
        strike = Strike(functions, at)
        before = Account.objects.using(ledger).get().balance
        with suppress(Struck), strike:
            work(ledger, at + 2)
        if not strike.where:
            break
        gc.collect()
        assert not connections[ledger].in_atomic_block, strike.where
        assert connections[ledger].get_autocommit(), strike.where
        assert Account.objects.using(ledger).get().balance in (before, at + 2), strike.where
        at += stride
    assert at > 5


def test_an_end_that_the_database_refuses_leaves_the_outer_transaction(ledger):
    """The block's savepoint is gone, so its release fails. The block is ended once, and never the one around it."""
    connection = connections[ledger]
    with transaction.atomic(ledger):
        with pytest.raises(DatabaseError), transaction.atomic(ledger), FencedBlock(FixedFence(9), "books", ledger):
            connection.cursor().execute(connection.ops.savepoint_commit_sql(connection.savepoint_ids[-1]))
        assert connection.in_atomic_block
        assert len(connection.atomic_blocks) == 1
    assert not connection.in_atomic_block
