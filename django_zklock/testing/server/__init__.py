"""
A ZooKeeper server for development and tests. It keeps its data in memory and needs only the standard library.

It shares no code with the locks. Otherwise a mistake in shared code could hide itself.
"""

from __future__ import annotations

from django_zklock.testing.server.server import DevServer, SessionInfo

__all__ = ["DevServer", "SessionInfo"]
