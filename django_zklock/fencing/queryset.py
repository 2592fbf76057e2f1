"""Fence, read, write and delete the rows of a query."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from asgiref.sync import sync_to_async
from django.core.exceptions import EmptyResultSet
from django.db import connections, models, transaction
from django.db.models.sql import Query

from django_zklock.fencing import row_tokens
from django_zklock.fencing.fence import Fence, check_fence, refusal, require_transaction

_Model = TypeVar("_Model", bound=models.Model)


class FencedQuerySet(models.QuerySet[_Model, _Model]):
    """A queryset whose rows can be fenced; a base class for the querysets of a project."""

    def fenced(self, fence: Fence) -> FencedRows[_Model]:
        """Return these rows, to read and write them as the holder `fence`."""
        return FencedRows(self, fence)

    def bulk_create(self, *args: Any, **options: Any) -> list[_Model]:
        """Insert rows as Django does. A row that is updated instead keeps its token."""
        if options.get("update_fields"):
            options["update_fields"] = [name for name in options["update_fields"] if name != row_tokens.FIELD]
        return super().bulk_create(*args, **options)


class FencedRows(Generic[_Model]):
    """
    The rows of a queryset, read and written by one holder of their lock.

    This is no queryset: it has no methods that bypass the fence. Its methods raise `StaleToken` if a newer holder has
    written one of the rows.
    """

    def __init__(self, queryset: models.QuerySet[_Model, Any], fence: Fence) -> None:
        query = queryset.query
        if query.is_sliced or query.combinator or query.distinct_fields or query.where.contains_over_clause:
            raise TypeError(
                "Rows cannot be fenced once a slice has been taken, nor after union() and the like, nor after "
                "distinct(*fields), nor by a filter on a window function; filter by their primary keys."
            )
        check_fence(fence)
        row_tokens.check_model(queryset.model)
        self._rows = queryset.all()
        self._rows._for_write = True  # type: ignore[attr-defined]
        self._fence = fence
        self._using: str = self._rows.db

    def get(self, *args: Any, **lookup: Any) -> _Model:
        """
        Fence one row, then read it, within a transaction; like `select_for_update().get()`.

        The row is up to date, and stays so to the end of the transaction. Raises what `QuerySet.get` raises, too.
        """
        require_transaction(self._using, "fenced(...).get()")
        rows = self._rows.filter(*args, **lookup)
        if not self._in_one_table(rows):
            rows = rows.filter(pk__in=self._claim(rows))
        elif not row_tokens.compare_and_set(rows, self._fence.token):
            self._refuse_newer(rows)
            rows = rows.none()  # a row that has come since then is not fenced
        row: _Model = row_tokens.current(rows).get()
        return row

    def update(self, **fields: Any) -> Any:
        """Update the rows, all or none; return what the queryset's own `update` returns: how many there were."""
        if row_tokens.FIELD in fields:
            raise TypeError(f"{row_tokens.FIELD} is set by the fence.")
        if not self._in_one_table(self._rows):
            return self._write(lambda rows: rows.update(**fields))
        with transaction.atomic(using=self._using):
            count = row_tokens.compare_and_set(self._rows, self._fence.token, **fields)
            self._refuse_newer(self._rows)
            return count

    def delete(self) -> Any:
        """Delete the rows, all or none, by the queryset's own `delete`, and return what that returns."""
        return self._write(lambda rows: rows.delete())

    async def aget(self, *args: Any, **lookup: Any) -> _Model:
        """Fence and read one row in the thread of the database, as `get` does; the transaction must be open there."""
        return await sync_to_async(self.get)(*args, **lookup)

    async def aupdate(self, **fields: Any) -> Any:
        """Update the rows in the thread of the database, as `update` does."""
        return await sync_to_async(self.update)(**fields)

    async def adelete(self) -> Any:
        """Delete the rows in the thread of the database, as `delete` does."""
        return await sync_to_async(self.delete)()

    def _write(self, write: Callable[[models.QuerySet[_Model, Any]], Any]) -> Any:
        """Fence the rows, then call a method of the project's queryset for them."""
        with transaction.atomic(using=self._using):
            return write(self._rows.filter(pk__in=self._claim(self._rows)))

    def _in_one_table(self, rows: models.QuerySet[_Model, Any]) -> bool:
        """Return whether one UPDATE, which is Django's own, can find these rows."""
        query = rows.all().query
        if type(rows).update is not models.QuerySet.update or type(query) is not Query:
            return False  # the project may hide rows, or note what is written
        query.get_initial_alias()
        if query.group_by is not None or query.count_active_tables() != 1:
            return False
        if connections[self._using].vendor != "mysql":
            return True
        try:
            sql: str = query.get_compiler(self._using).as_sql()[0]
        except EmptyResultSet:
            return True
        return sql.upper().count("SELECT") == 1  # a sub-select may find other rows in an UPDATE than in a SELECT

    def _claim(self, rows: models.QuerySet[_Model, Any]) -> list[Any]:
        """
        Raise the tokens of these rows, which locks them; return their primary keys.

        The caller uses these keys from now on: a row that the query finds only later is not fenced.
        """
        all_rows = row_tokens.table(rows.model, self._using)
        # Write before anything is read. With snapshot isolation, a transaction sees the state of its first read. SQLite
        # cannot write after that if another connection has written since. MySQL cannot write to a table that a subquery
        # reads, but locks the rows as it reads them.
        if self._in_one_table(rows):
            row_tokens.compare_and_set(rows, self._fence.token)
        elif connections[self._using].vendor != "mysql":
            row_tokens.compare_and_set(all_rows.filter(pk__in=rows.order_by().values("pk")), self._fence.token)
        claimed = list(dict.fromkeys(row_tokens.current(rows.order_by().values_list("pk", flat=True))))
        selected = all_rows.filter(pk__in=claimed)
        if row_tokens.compare_and_set(selected, self._fence.token) < len(claimed):
            self._refuse_newer(selected)
        return claimed

    def _refuse_newer(self, rows: models.QuerySet[Any, Any]) -> None:
        newer = rows.filter(**{f"{row_tokens.FIELD}__gt": self._fence.token})
        seen = row_tokens.highest(newer)
        if seen is not None:
            raise refusal(self._fence, f"a row of {rows.model._meta.label}", seen)
