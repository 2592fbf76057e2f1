"""Leader election: the candidates, their attempts, and observers."""

from __future__ import annotations

from django_zklock.locks.election.leader import Leader, zk_leader
from django_zklock.locks.election.observer import Candidate

__all__ = ["Candidate", "Leader", "zk_leader"]
