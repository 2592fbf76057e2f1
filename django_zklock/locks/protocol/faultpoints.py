"""
The named moments of the protocol at which a test can inject a fault.

Outside of tests, each costs the call of a function that does nothing: 40 ns, while a round trip takes a millisecond. A
test replaces `reach` by a function that raises, waits or ends the process.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias, get_args

Faultpoint: TypeAlias = Literal[
    "before_create",
    "after_create_sent",
    "after_create_reply",
    "after_list",
    "before_watch",
    "after_watch",
    "on_wake",
    "before_grant",
    "before_delete",
    "after_delete_sent",
]

FAULTPOINTS: Final[tuple[Faultpoint, ...]] = get_args(Faultpoint)
"""In the order in which a contender reaches them; all on the protocol's thread."""


def reach(point: Faultpoint) -> None:
    """Do nothing. A test replaces this function."""
