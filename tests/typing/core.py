"""The types where the core meets the program around it: mypy refuses what does not fit. mypy reads this file only."""

from __future__ import annotations

from typing_extensions import assert_type

from django_zklock.core import hooks
from django_zklock.core.execution.owner import Owner
from django_zklock.core.locks.held import HeldLock
from django_zklock.core.locks.refusals import AnyContender
from django_zklock.core.locks.spec import LockSpec
from django_zklock.core.protocol.grant import Grant


class OwnEvents(hooks.Events):
    def waiting(self, contender: AnyContender, owner: Owner) -> None:
        assert_type(contender.spec.key, str)

    def ended(self, held: HeldLock) -> None:
        assert_type(held.grant, Grant)
        assert_type(held.grant.held_shares(), list[HeldLock])


class WrongEvents(hooks.Events):
    def acquired(self, held: Grant, waited: float) -> None: ...  # type: ignore[override]

    def release_requested(self, grant: Grant, request: str) -> None: ...  # type: ignore[override]

    def connection_changed(self, session: str, state: str, previous: str) -> None: ...  # type: ignore[override]


class WrongScope(hooks.Scope):
    def check(self, spec: str) -> None: ...  # type: ignore[override]

    def keep(self, held: LockSpec) -> None: ...  # type: ignore[override]


def tell_wrong_things(held: HeldLock, grant: Grant) -> None:
    hooks.events.ended(grant)  # type: ignore[arg-type]
    hooks.events.held_long(held, 1.0)  # type: ignore[arg-type]
    hooks.events.lost(held, "reason", "receipt")  # type: ignore[arg-type]
