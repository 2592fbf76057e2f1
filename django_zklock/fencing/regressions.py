"""Find fenced rows whose tokens are ahead of ZooKeeper, because its data were lost, and reset them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from django.apps import apps
from django.db import connections, models, router, transaction

from django_zklock.exceptions import ZooKeeperUnavailable
from django_zklock.fencing import last_zxid
from django_zklock.fencing.model import FencingTokenField
from django_zklock.fencing.queryset import batches


@dataclass(frozen=True, slots=True)
class Column:
    """The column with the tokens of one table in one database."""

    model: type[models.Model]
    field: str
    using: str

    @property
    def label(self) -> str:
        """The model's name, as in `app.Model`."""
        return self.model._meta.label

    @property
    def rows(self) -> models.QuerySet[Any]:
        """All rows; a manager might hide some."""
        return models.QuerySet(model=self.model, using=self.using)

    def above(self, token: int) -> models.QuerySet[Any]:
        """Return the rows that have seen a higher token."""
        found: models.QuerySet[Any] = self.rows.filter(**{f"{self.field}__gt": token})
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The result for one table."""

    column: Column
    rows: int
    highest: int
    ahead: int | None
    """The number of rows whose token ZooKeeper has not given out yet; None if it did not answer."""


def fenced_models() -> Iterator[type[models.Model]]:
    """Yield the models whose own table has tokens."""
    for model in apps.get_models():
        if not model._meta.proxy and any(_tokens_of(model)):
            yield model


def columns(models_: Iterable[type[models.Model]], databases: Sequence[str]) -> list[Column]:
    """Return the token columns of these models in these databases, if the tables exist."""
    found = []
    wanted = sorted(models_, key=lambda model: model._meta.label)
    for using in databases:
        here = [model for model in wanted if router.allow_migrate_model(using, model)]
        tables = set(connections[using].introspection.table_names()) if here else set()
        for model in here:
            if connections[using].introspection.identifier_converter(model._meta.db_table) in tables:
                found += [Column(model, field.attname, using) for field in _tokens_of(model)]
    return found


def look(searched: Sequence[Column]) -> tuple[list[Finding], int | None]:
    """
    Return a finding for each table, and the last zxid of ZooKeeper; None if it did not answer.

    A row is ahead only if the last zxid is still below its token after the row was read.
    """
    reached = _reached()
    read = []
    for column in searched:
        totals = column.rows.aggregate(rows=models.Count("pk"), highest=models.Max(column.field))
        suspects = [] if reached is None else list(column.above(reached).values_list(column.field, flat=True))
        read.append((column, totals, suspects))
    if any(suspects for _, _, suspects in read):
        reached = _reached()
    findings = []
    for column, totals, suspects in read:
        ahead = None if reached is None else sum(token > reached for token in suspects)
        findings.append(Finding(column=column, rows=totals["rows"], highest=totals["highest"] or 0, ahead=ahead))
    return findings, reached


def reset(column: Column) -> int:
    """
    Set the tokens that are ahead of ZooKeeper to 0, within the open transaction; return their number.

    Raises `ZooKeeperUnavailable`: then it is unknown which tokens are ahead.
    """
    suspects = column.above(last_zxid.current()).select_for_update()
    read = list(suspects.values_list("pk", column.field))
    if not read:
        return 0
    reached = last_zxid.current()  # after the rows were read: it is above tokens that were just given out
    ahead = [pk for pk, token in read if token > reached]
    return sum(column.above(reached).filter(pk__in=some).update(**{column.field: 0}) for some in batches(ahead))


def reset_all(chosen: Sequence[Column]) -> dict[Column, int]:
    """Do this for several tables, in one transaction for each database; return the number for each table."""
    done = {}
    for using in dict.fromkeys(column.using for column in chosen):
        with transaction.atomic(using=using):
            done.update({column: reset(column) for column in chosen if column.using == using})
    return done


def _tokens_of(model: type[models.Model]) -> Iterator[models.Field[Any, Any]]:
    return (field for field in model._meta.local_fields if isinstance(field, FencingTokenField))


def _reached() -> int | None:
    try:
        return last_zxid.current()
    except ZooKeeperUnavailable:
        return None
