"""
Knows how a database refuses what a stale holder writes: each row keeps the highest token that it has seen.

The token of a lock rises with every grant. A row is written only by a statement that raises its token, or finds its own
there (compare-and-set), and stays locked to the end of the transaction. So a holder that was paused, and replaced
meanwhile, finds a higher token, and nothing that it does is committed: whatever it believes of its lock.
"""

from __future__ import annotations

from django_zklock.fencing.fence import Fence
from django_zklock.fencing.model import FencedManager, FencedModel, FencingTokenField
from django_zklock.fencing.rows import FencedQuerySet, FencedRows

__all__ = ["Fence", "FencedManager", "FencedModel", "FencedQuerySet", "FencedRows", "FencingTokenField"]
