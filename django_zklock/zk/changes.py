"""Knows the changes that can be made in one transaction: all of them or none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True, kw_only=True)
class Make:
    """Create a node; fails with `NodeExists`, or with `NodeMissing` for want of a parent."""

    path: str
    data: bytes = b""
    ephemeral: bool = False
    sequential: bool = False  # the server appends a number; only of what is not ephemeral


@dataclass(frozen=True, slots=True, kw_only=True)
class Put:
    """Replace the data of a node that has this version; else fails with `Outdated`."""

    path: str
    data: bytes
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Remove:
    """Delete a node, if it has this version (-1: any) and no children."""

    path: str
    version: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Require:
    """Fail with `NodeMissing` unless the node exists."""

    path: str


Change: TypeAlias = Make | Put | Remove | Require
