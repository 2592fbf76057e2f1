"""`FencedModel`: a model whose rows have a token, and how one row is fenced and saved."""

from __future__ import annotations

from typing import Any, TypeVar

from asgiref.sync import sync_to_async
from django.core import checks
from django.db import IntegrityError, models, router, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models.sql import InsertQuery
from django.db.models.sql.compiler import SQLUpdateCompiler

from django_zklock.fencing import row_tokens
from django_zklock.fencing.fence import Fence, check_fence, require_transaction
from django_zklock.fencing.queryset import FencedQuerySet

_Model = TypeVar("_Model", bound=models.Model)


class FencingTokenField(models.BigIntegerField):  # type: ignore[type-arg]  # Django has none at run time
    """
    The highest token that a row has seen.

    In a migration it is a plain `BigIntegerField`, so that the migrations of a project outlive its use of this package.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"default": 0, "editable": False, **kwargs})

    def deconstruct(self) -> Any:
        name, _, args, kwargs = super().deconstruct()
        return name, "django.db.models.BigIntegerField", args, kwargs

    def pre_save(self, model_instance: models.Model, add: bool) -> Any:
        """Leave the token of an existing row unchanged, as no UPDATE lowers it: a plain `save()` writes 0."""
        return super().pre_save(model_instance, add) if add else 0

    def get_placeholder(self, value: Any, compiler: Any, connection: Any) -> str:
        """Return the SQL around a value. No UPDATE lowers the token, such as one by `loaddata` or `bulk_update()`."""
        query = compiler.query
        if isinstance(query, InsertQuery) and self in query.update_fields:  # type: ignore[attr-defined]
            raise TypeError(f"An upsert may lower the token: leave {self.name} out of the `update_fields`.")
        if not isinstance(compiler, SQLUpdateCompiler):
            return "%s"
        greatest = "MAX" if connection.vendor == "sqlite" else "GREATEST"
        return f"{greatest}({connection.ops.quote_name(self.column)}, %s)"

    def get_placeholder_sql(self, value: Any, compiler: Any, connection: Any) -> Any:
        """Return the SQL around a value and its parameters: Django 6.1 calls this instead of `get_placeholder`."""
        sql, parameters = compiler.compile(value) if hasattr(value, "as_sql") else ("%s", (value,))
        return self.get_placeholder(value, compiler, connection) % sql, parameters


class ExactCharField(models.CharField):  # type: ignore[type-arg]  # Django has none at run time
    """Text that is compared byte by byte; by default, MySQL and MariaDB ignore case, accents and blanks at the end."""

    def db_parameters(self, connection: BaseDatabaseWrapper) -> Any:
        parameters: Any = super().db_parameters(connection)
        if connection.vendor == "mysql":
            mariadb = connection.mysql_is_mariadb  # type: ignore[attr-defined]
            parameters["collation"] = "utf8mb4_nopad_bin" if mariadb else "utf8mb4_0900_bin"
        return parameters


class FencedManager(models.Manager.from_queryset(FencedQuerySet)[_Model]):  # type: ignore[misc]
    """The manager of a model with fenced rows."""


class FencedModel(models.Model):
    """
    A model whose rows refuse the writes of a stale holder of their lock.

    A row belongs to one lock: tokens of different locks cannot be compared. A plain `save()` or `update()` is not
    refused, and does not lower the token. Multi-table inheritance is refused.
    """

    fencing_token: models.Field[int, int] = FencingTokenField()

    objects = FencedManager()

    class Meta:
        """The model is abstract: it has no table of its own."""

        abstract = True

    @classmethod
    def check(cls, **kwargs: Any) -> list[checks.CheckMessage]:
        """Refuse a model whose rows cannot be fenced."""
        problem = row_tokens.problem_of(cls)
        if not isinstance(cls._meta.get_field(row_tokens.FIELD), FencingTokenField):
            problem = (
                f"{cls._meta.label}.{row_tokens.FIELD} is no FencingTokenField, so a plain save may lower the token."
            )
        return [*super().check(**kwargs), *([checks.Error(problem, obj=cls, id="zklock.E018")] if problem else [])]

    def fence(self, fence: Fence, *, using: str | None = None, refresh: bool = False) -> None:
        """
        Raise the token of this row to that of `fence`, which locks the row to the end of the open transaction.

        Make it the first statement of the transaction, and read afterwards: `refresh` reads the row again. Raises
        `StaleToken` if a newer holder has written the row, `DoesNotExist` if there is no row, and
        `TransactionManagementError` if no transaction is open.
        """
        using = using or router.db_for_write(type(self), instance=self)
        check_fence(fence)
        row_tokens.check_model(type(self))
        require_transaction(using, "fence()")
        if not row_tokens.advance(self, fence, using):
            raise type(self).DoesNotExist(f"There is no {self._meta.label} {self.pk} to fence; save it first.")
        self.fencing_token = fence.token
        if refresh:
            self.refresh_from_db(from_queryset=row_tokens.current(type(self)._base_manager.using(using)))

    async def afence(self, fence: Fence, *, using: str | None = None, refresh: bool = False) -> None:
        """Fence this row in the thread of the database, as `fence` does; the transaction must be open there."""
        await sync_to_async(self.fence)(fence, using=using, refresh=refresh)

    def save_fenced(self, fence: Fence, using: str | None = None, **save_kwargs: Any) -> None:
        """
        Save this instance unless a newer holder has written its row; then raise `StaleToken` and write nothing.

        A new instance is inserted with the token. The values read before may be out of date. If the new values depend
        on the old ones, use `fence()` or `fenced(...).get()`, and read afterwards.
        """
        using = using or router.db_for_write(type(self), instance=self)
        check_fence(fence)
        row_tokens.check_model(type(self))
        token_before = self.fencing_token
        try:
            with transaction.atomic(using=using):
                update = save_kwargs.get("force_update") or save_kwargs.get("update_fields") is not None
                # No UPDATE of a missing row: MySQL would lock the gap, and two inserts into a gap end in a deadlock.
                exists = bool(update or not self._state.adding) and row_tokens.advance(self, fence, using)
                self.fencing_token = fence.token
                if exists or update:
                    self.save(using=using, **save_kwargs)
                else:
                    self._insert_fenced(fence, using, save_kwargs)
        except BaseException:
            self.fencing_token = token_before
            raise

    save_fenced.alters_data = True  # type: ignore[attr-defined]

    async def asave_fenced(self, fence: Fence, using: str | None = None, **save_kwargs: Any) -> None:
        """Save in the thread of the database, as `save_fenced` does."""
        await sync_to_async(self.save_fenced)(fence, using, **save_kwargs)

    asave_fenced.alters_data = True  # type: ignore[attr-defined]

    def _insert_fenced(self, fence: Fence, using: str, save_kwargs: dict[str, Any]) -> None:
        # Without force_insert, Django would update a row that another process has inserted since with its own token.
        insert = {"force_insert": True, **save_kwargs}
        if save_kwargs.get("force_insert") or self.pk is None:
            self.save(using=using, **insert)
            return
        try:
            with transaction.atomic(using=using):
                self.save(using=using, **insert)
        except IntegrityError:
            if not row_tokens.advance(self, fence, using):
                raise
            self.save(using=using, **save_kwargs)
