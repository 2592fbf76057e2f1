"""
A ZooKeeper to try things on and to test with: the client protocol over a tree in memory, standard library only.

It shares no code with the locks it serves, so that a mistake in one cannot hide in the other.
"""

from __future__ import annotations

from django_zklock.testing.server.server import DevServer, SessionInfo

__all__ = ["DevServer", "SessionInfo"]
