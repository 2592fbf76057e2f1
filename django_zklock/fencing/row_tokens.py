"""The tokens of rows in SQL: the table that has them, and the statement that compares and sets them."""

from __future__ import annotations

from typing import Any

from django.db import connections, models

from django_zklock.fencing.fence import Fence, refusal

FIELD = "fencing_token"


def owner(model: type[models.Model]) -> type[models.Model]:
    """Return the model whose table has the column: with multi-table inheritance it may be a parent."""
    found: type[models.Model] = model._meta.get_field(FIELD).model
    return found


def table(model: type[models.Model], using: str) -> models.QuerySet[Any]:
    """Return all rows of that table; not by a manager, which may hide some."""
    return models.QuerySet(model=owner(model), using=using)


def owner_pk(instance: models.Model) -> Any:
    """Return the primary key of an instance's row in that table."""
    model = type(instance)
    above = owner(model)
    value = getattr(instance, above._meta.pk.attname)
    if value is None:
        link = model._meta.get_ancestor_link(above)
        value = None if link is None else getattr(instance, link.attname)
    return value


def compare_and_set(rows: models.QuerySet[Any], token: int) -> int:
    """
    Raise the tokens of these rows in one statement, except for higher ones; return how many rows have this token now.

    The comparison is at the top level of the WHERE clause. Only there does a database check it again (under READ
    COMMITTED) after it had to wait for the row.
    """
    count: int = rows.filter(**{f"{FIELD}__lte": token}).update(**{FIELD: token})
    return count


def current(rows: models.QuerySet[Any, Any]) -> models.QuerySet[Any, Any]:
    """
    Return a query that reads the newest committed state of these rows.

    With REPEATABLE READ, MySQL and MariaDB read the state of the first read, unless they lock the rows. They write
    after such a read, which PostgreSQL and SQLite refuse.
    """
    connection = connections[rows.db]
    return rows if connection.vendor != "mysql" or connection.get_autocommit() else rows.select_for_update()


def highest(rows: models.QuerySet[Any, Any]) -> int | None:
    """Return the highest token that these rows have seen; None if there are none."""
    found: int | None = current(rows).order_by(f"-{FIELD}").values_list(FIELD, flat=True).first()
    return found


def advance(instance: models.Model, fence: Fence, using: str) -> bool:
    """Raise the token of an instance's row; return whether there is one. Raises `StaleToken`."""
    pk = owner_pk(instance)
    if pk is None or (isinstance(pk, tuple) and None in pk):
        return False
    rows = table(type(instance), using).filter(pk=pk)
    if compare_and_set(rows, fence.token):
        return True
    seen = highest(rows)
    if seen is not None and seen > fence.token:
        raise refusal(fence, f"{type(instance)._meta.label} {pk}", seen)
    return seen is not None and bool(compare_and_set(rows, fence.token))  # inserted between the two statements
