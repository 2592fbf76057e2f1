"""Knows a model whose rows have a token, and how one of them is fenced and saved."""

from __future__ import annotations

from typing import Any, TypeVar

from asgiref.sync import sync_to_async
from django.db import IntegrityError, models, router, transaction

from django_zklock.fencing import tokens
from django_zklock.fencing.fence import Fence, check_fence, require_transaction
from django_zklock.fencing.rows import FencedQuerySet, FencedRows

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
        """Leave the token of a row that exists as it is; a plain `save()` must not bring back what it has read once."""
        return super().pre_save(model_instance, add) if add else models.F(self.attname)


class FencedManager(models.Manager.from_queryset(FencedQuerySet)[_Model]):  # type: ignore[misc]
    """The manager of a model with fenced rows."""


class FencedModel(models.Model):
    """
    A model whose rows refuse what a stale holder of their lock writes.

    A row belongs to one lock: tokens of different locks cannot be compared. A plain `save()` or `update()` is not
    refused, and leaves the token as it is.
    """

    fencing_token: models.Field[int, int] = FencingTokenField()

    objects = FencedManager()

    class Meta:
        """It has no table of its own."""

        abstract = True

    def fence(self, fence: Fence, *, using: str | None = None, refresh: bool = False) -> None:
        """
        Raise the token of this row to that of `fence`, and so lock the row to the end of the open transaction.

        It is to be the first statement of the transaction, and what is read comes after it: `refresh` reads the row
        anew. Raises `StaleToken` when a newer holder was there, `DoesNotExist` when there is no row, and
        `TransactionManagementError` when no transaction is open.
        """
        using = using or router.db_for_write(type(self), instance=self)
        check_fence(fence)
        require_transaction(using, "fence()")
        if not tokens.advance(self, fence, using):
            raise type(self).DoesNotExist(f"There is no {self._meta.label} {self.pk} to be fenced; save it first.")
        self.fencing_token = fence.token
        if refresh:
            self.refresh_from_db(using=using)

    async def afence(self, fence: Fence, *, using: str | None = None, refresh: bool = False) -> None:
        """Do the same as `fence` in the thread of the database; the transaction has to be open there."""
        await sync_to_async(self.fence)(fence, using=using, refresh=refresh)

    def save_fenced(self, fence: Fence, using: str | None = None, **save_kwargs: Any) -> None:
        """
        Save this instance, if no newer holder has been at its row; else raise `StaleToken`, and nothing is written.

        A new one is inserted with the token. What was read before may be out of date, though: where the new values
        come from the old ones, use `fence()` or `fenced(...).get()` and read after it.
        """
        using = using or router.db_for_write(type(self), instance=self)
        check_fence(fence)
        before = self.fencing_token
        try:
            with transaction.atomic(using=using):
                there = tokens.advance(self, fence, using)
                self.fencing_token = fence.token
                if there or save_kwargs.get("force_update") or save_kwargs.get("update_fields") is not None:
                    self.save(using=using, **save_kwargs)
                else:
                    self._insert_fenced(fence, using, save_kwargs)
                self.fencing_token = fence.token  # Django 6 reads it back, or defers it
        except BaseException:
            self.fencing_token = before
            raise

    save_fenced.alters_data = True  # type: ignore[attr-defined]

    async def asave_fenced(self, fence: Fence, using: str | None = None, **save_kwargs: Any) -> None:
        """Do the same as `save_fenced`."""
        await sync_to_async(self.save_fenced)(fence, using, **save_kwargs)

    asave_fenced.alters_data = True  # type: ignore[attr-defined]

    def _insert_fenced(self, fence: Fence, using: str, save_kwargs: dict[str, Any]) -> None:
        # Django would look for a row to update in each table: one that somebody has made by now, with its own token.
        insert = {"force_insert": (tokens.owner(type(self)),), **save_kwargs}
        if save_kwargs.get("force_insert") or tokens.owner_pk(self) is None:
            self.save(using=using, **insert)
            return
        try:
            with transaction.atomic(using=using):
                self.save(using=using, **insert)
        except IntegrityError:
            if not tokens.advance(self, fence, using):
                raise
            self.save(using=using, **save_kwargs)


__all__ = ["FencedManager", "FencedModel", "FencedRows", "FencingTokenField"]
