"""The tokens of rows in SQL: the statement that compares and sets them, and the models that it works for."""

from __future__ import annotations

from typing import Any

from django.db import connections, models

from django_zklock.fencing.fence import Fence, refusal

FIELD = "fencing_token"


def problem_of(model: type[models.Model]) -> str:
    """Return why the rows of a model cannot be fenced; empty if they can."""
    parents = model._meta.concrete_model._meta.parents  # type: ignore[union-attr]  # of a proxy it is another model
    if not parents:
        return ""
    names = ", ".join(parent._meta.label for parent in parents)
    return (
        f"The rows of {model._meta.label} cannot be fenced: it inherits the table of {names}, and one statement cannot "
        "compare the token in one table and write the other. Give the model a table of its own (an abstract base "
        "class), or a foreign key to the other model."
    )


def check_model(model: type[models.Model]) -> None:
    """Raise `TypeError` for a model whose rows cannot be fenced."""
    problem = problem_of(model)
    if problem:
        raise TypeError(problem)


def table(model: type[models.Model], using: str) -> models.QuerySet[Any]:
    """Return all rows of the model, without its managers, which may hide some."""
    return models.QuerySet(model=model, using=using)


def compare_and_set(rows: models.QuerySet[Any], token: int, /, **fields: Any) -> int:
    """
    Raise the tokens of these rows in one statement, except for higher ones, and set `fields`.

    Return how many rows have this token now. The comparison is at the top level of the WHERE clause. Only there does a
    database check it again (under READ COMMITTED) after it had to wait for the row.
    """
    count: int = rows.filter(**{f"{FIELD}__lte": token}).update(**{FIELD: token}, **fields)
    return count


def current(rows: models.QuerySet[Any, Any]) -> models.QuerySet[Any, Any]:
    """
    Return a query that reads the newest committed state of these rows.

    With REPEATABLE READ, MySQL and MariaDB read the state of the first read, unless they lock the rows, and all rows
    that are joined. They allow a write after such an outdated read. PostgreSQL and SQLite refuse it.
    """
    connection: Any = connections[rows.db]
    newest = connection.vendor != "mysql" or connection.get_autocommit()
    return rows if newest or connection.isolation_level == "read committed" else rows.select_for_update()


def highest(rows: models.QuerySet[Any, Any]) -> int | None:
    """Return the highest token that these rows have seen; None if there are none."""
    token: int | None = current(rows).order_by(f"-{FIELD}").values_list(FIELD, flat=True).first()
    return token


def advance(instance: models.Model, fence: Fence, using: str) -> bool:
    """Raise the token of an instance's row; return whether there is one. Raises `StaleToken`."""
    pk = instance.pk
    if pk is None or (isinstance(pk, tuple) and None in pk):
        return False
    rows = table(type(instance), using).filter(pk=pk)
    if compare_and_set(rows, fence.token):
        return True
    seen = highest(rows)
    if seen is not None and seen > fence.token:
        raise refusal(fence, f"{type(instance)._meta.label} {pk}", seen)
    return seen is not None and bool(compare_and_set(rows, fence.token))  # inserted between the two statements
