"""
Whether this process may contact ZooKeeper. The pytest plugin forbids it; `LockTester` allows it in its block.

This module imports nothing, because the plugin loads it into every run of pytest.
"""

from __future__ import annotations

_forbidden = ""  # the error message while contact is forbidden; written by the plugin, read by any thread
_allowed = 0  # running `LockTester`s and marked tests; written by the thread that runs the tests


def forbid(message: str) -> None:
    """Make `check()` raise `RuntimeError(message)` outside `allow` and `disallow`; "" forbids nothing."""
    global _forbidden
    _forbidden = message


def allow() -> None:
    """Allow contact until `disallow` has been called as often as this."""
    global _allowed
    _allowed += 1


def disallow() -> None:
    """End one `allow`."""
    global _allowed
    _allowed -= 1


def check() -> None:
    """Raise `RuntimeError` if contact is forbidden now."""
    if _forbidden and not _allowed:
        raise RuntimeError(_forbidden)
