"""The operations of a transaction, which carries out all of them or none. They are named as ZooKeeper names them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True, kw_only=True)
class Create:
    """Create a znode. Fails with `NodeExists`, or with `NodeMissing` if it has no parent."""

    path: str
    data: bytes = b""
    ephemeral: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SetData:
    """Replace the data of a znode that has this version (-1: any). Fails with `Outdated` if it has another one."""

    path: str
    data: bytes
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Delete:
    """Delete a znode that has this version (-1: any). Fails with `NotEmpty` if it has children."""

    path: str
    version: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """Fail with `NodeMissing` unless the znode exists, with `Outdated` unless it has this version (-1: any)."""

    path: str
    version: int = -1


Operation: TypeAlias = Create | SetData | Delete | Check
