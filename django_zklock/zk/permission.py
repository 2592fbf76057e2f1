"""Whether this process may contact ZooKeeper. The pytest plugin forbids it; `LockTester` allows it in its block."""

from __future__ import annotations

_forbidden = ""  # what to say to a call that is not allowed; written by the plugin, read by any thread
_allowed = 0  # testers and marked tests that are running; written by the thread that runs the tests


def forbid(message: str) -> None:
    """Refuse all contact with ZooKeeper outside `allow` and `disallow`, with a RuntimeError; "" refuses nothing."""
    global _forbidden
    _forbidden = message


def allow() -> None:
    """Allow it until `disallow` is called as often as this."""
    global _allowed
    _allowed += 1


def disallow() -> None:
    """End what `allow` began."""
    global _allowed
    _allowed -= 1


def check() -> None:
    """Raise if contact is forbidden now."""
    if _forbidden and not _allowed:
        raise RuntimeError(_forbidden)
