"""
The named moments of the protocol at which a test can inject a fault.

Outside of tests, each costs the call of a function that does nothing: some 40 ns, of a round trip's millisecond. A test
replaces `reach` by a function that raises, waits or ends the process at the moment of its choice.
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
"""In the order in which a contender that waits, is granted and leaves comes by them; all on the protocol's thread."""


def reach(point: Faultpoint) -> None:
    """Come by one of them."""
