"""
The children of a lock's directory that are no contenders, but say something about them, each by its name.

So whoever lists the queue has read them, too, in one answer.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

START: Final = "!"
"""What the names of signs begin with; no segment of a key does, as `!` is percent-encoded there."""

_LIMIT = re.compile(r"!limit:(?P<value>[0-9]{1,5}):(?P<through>-1|[0-9]{1,10}):(?P<unsure>unsure:)?")
_READS = re.compile(r"!reads:(?P<guid>[0-9a-fA-F-]{32,36}):")


@dataclass(frozen=True, slots=True)
class Limit:
    """How many permits of a semaphore there are, for all processes."""

    value: int
    through: int = -1
    """The sequence number of the last contender that may have a permit by a higher limit before; it keeps it."""
    sure: bool = True
    """Whether all who had a permit at the change are known; else one that came before it may, too."""

    @property
    def name(self) -> str:
        """The name of the node that says so."""
        return f"!limit:{self.value}:{self.through}:{'' if self.sure else 'unsure:'}"


def limit(name: str) -> Limit | None:
    """Return the limit that a name says, or None if it says another thing."""
    found = sign(name)
    return found if found is not None and found.value else None


def sign(name: str) -> Limit | None:
    """
    Return the limit that a name says, also one whose value is 0; or None if it says another thing.

    With 0 none is set any more, but those up to its number keep a permit.
    """
    match = _LIMIT.fullmatch(name)
    return Limit(int(match["value"]), int(match["through"]), match["unsure"] is None) if match else None


def reads(guid: str) -> str:
    """Return the name of the node that says: the write contender of this guid only reads from now on."""
    return f"!reads:{guid}:"


def reader(name: str) -> str:
    """Return the guid of the contender that reads now, as a name says it; empty if it says another thing."""
    match = _READS.fullmatch(name)
    return match["guid"] if match else ""


def is_sign(name: str) -> bool:
    """Tell whether the name of a child is a sign, or kept for one."""
    return name.startswith(START)
