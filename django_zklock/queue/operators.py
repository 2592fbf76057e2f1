"""An operator's hold: how its node in a queue is told from others, what is written into it, and when it is over."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from typing import Final

from django_zklock.exceptions import UnreadableQueue
from django_zklock.queue import guids
from django_zklock.queue.nodes import Payload, parse
from django_zklock.queue.printable import printable

OPERATOR: Final = "operator"
REASON: Final = "reason"
SECONDS: Final = "seconds"
RESTS: Final = "rests"

LONGEST: Final = 7 * 24 * 3600.0
"""Seconds that a hold may last."""
MAX_BY: Final = 40
"""Characters of an operator's name that are kept."""
MAX_REASON: Final = 160
"""Characters of a reason that are kept in the node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorHold:
    """
    A lock that a person keeps for a time, such as to drain a deploy, whatever becomes of the process that asked.

    It ends `seconds` after its node was last written, by the server's clock. No text in it has control characters.
    """

    key: str
    path: str
    """Of its node."""
    token: int
    """The node's czxid; what `end_hold` wants."""
    by: str
    """Who took it."""
    reason: str
    since: datetime
    """When its node was last written: as it was granted; as it came, while it waits."""
    seconds: float
    version: int = 0
    """Of its node's data."""
    rests: bool = False
    """Whether nobody took it, but it stays of a hold that is to last at least so long; then `by` says for what work."""

    @property
    def until(self) -> datetime:
        """When it ends by itself, by the server's clock; of one that waits, when it gives up."""
        return self.since + timedelta(seconds=self.seconds)

    @property
    def who(self) -> str:
        """Who has it, in words."""
        return self.by if self.rests else f"operator {self.by}"

    def __str__(self) -> str:
        """Return who holds until when and why, in one line."""
        return f"{self.who} until {self.until:%Y-%m-%d %H:%M:%S} UTC: {self.reason}"


def new_guid() -> str:
    """Return a guid that says "operator" and is as unique as any."""
    return guids.new(guids.Mark.OPERATOR)


def is_operator(name: str) -> bool:
    """Tell whether the name of a node is that of an operator's hold, without a read; never raises."""
    try:
        child = parse(name)
    except UnreadableQueue:
        return False
    return child is not None and guids.mark_of(child.guid) is guids.Mark.OPERATOR


def operator_hold(
    payload: Payload | None, *, key: str, path: str, token: int, owner: int, mtime: float, version: int = 0
) -> OperatorHold | None:
    """
    Return the operator's hold that a node is, or None if it is none; never raises.

    `owner` is the session that an ephemeral node belongs to: a hold has none. `mtime` is in seconds since 1970.
    """
    if payload is None or owner or not payload.about.get(OPERATOR) or not is_operator(path.rpartition("/")[2]):
        return None
    try:
        seconds = float(payload.about.get(SECONDS, ""))
        since = datetime.fromtimestamp(mtime, timezone.utc)
    except (ValueError, OverflowError, OSError):
        return None
    if not 0 <= seconds <= LONGEST:  # nor is it NaN
        return None
    return OperatorHold(
        key=key,
        path=path,
        token=token,
        by=printable(payload.about[OPERATOR], MAX_BY),
        reason=printable(payload.about.get(REASON, ""), MAX_REASON),
        since=since,
        seconds=seconds,
        version=version,
        rests=bool(payload.about.get(RESTS)),
    )


def written(payload: Payload, *, by: str, reason: str, seconds: float, rests: bool = False) -> bytes:
    """Return the data of a hold's node: the payload as that of an operator, with all that `operator_hold` needs."""
    by, reason = printable(by, MAX_BY), printable(reason, MAX_REASON)
    while True:
        about = {OPERATOR: by, REASON: reason, SECONDS: f"{seconds:.3f}", **({RESTS: "yes"} if rests else {})}
        data = replace(payload, what=f"{'' if rests else 'operator '}{by}: {reason}", about=about).encode()
        found = Payload.decode(data)
        if found is not None and found.about == about:
            return data
        by, reason = by[: MAX_BY // 2], printable(reason, max(1, len(reason) * 3 // 4))  # too much for a payload
