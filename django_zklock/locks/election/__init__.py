"""Leader election: the candidates, their attempts, and observers."""

from __future__ import annotations

from django_zklock.locks.election.leader import Leader, zk_leader

__all__ = ["Leader", "zk_leader"]
