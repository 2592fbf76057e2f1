"""
Fencing: a database or a service refuses the writes of a holder that another one has replaced.

The token of a lock rises with every grant. Each fenced row keeps the highest token that has written it. A statement
writes a row only if that raises its token or keeps it the same (compare-and-set), and the row stays locked until the
transaction ends. So a holder that was paused and replaced finds a higher token and commits nothing, even if it
still trusts its lock.
"""

from __future__ import annotations

from django_zklock.fencing.fence import Fence
from django_zklock.fencing.model import FencedManager, FencedModel, FencingTokenField
from django_zklock.fencing.queryset import FencedQuerySet, FencedRows

__all__ = [
    "Fence",
    "FencedManager",
    "FencedModel",
    "FencedQuerySet",
    "FencedRows",
    "FencingTokenField",
]
