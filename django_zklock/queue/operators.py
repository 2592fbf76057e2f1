"""An operator's hold: how its node in a queue is told from others, what is written into it, and when it is over."""

from __future__ import annotations

import re
import unicodedata
import uuid
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from typing import Final

from django_zklock.queue.nodes import Payload, parse

LONGEST: Final = 7 * 24 * 3600.0
"""Seconds that a hold may last."""
MAX_BY: Final = 40
"""Characters of an operator's name that are kept."""
MAX_REASON: Final = 160
"""Characters of a reason that are kept in the node."""

_VERSION = 8  # of a UUID, "custom" by RFC 9562: no client draws one by chance
_MARK = "0be7"  # and the first characters, as another program may use that version, too
_SPACES = re.compile(r"\s+")


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorHold:
    """
    A lock that a person holds, or waits for: with a reason and an end, whatever becomes of the process that asked.

    It ends `seconds` after its node was last written, and both are told by the server's clock.
    """

    key: str
    name: str
    """Of its node."""
    guid: str
    token: int
    """czxid of its node; what `end_hold` wants."""
    by: str
    reason: str
    since: datetime
    """When its node was last written: as it was granted, or as it came, while it waits."""
    seconds: float
    version: int = 0
    """Of its node's data."""

    @property
    def until(self) -> datetime:
        """When it is over, by the server's clock; of one that waits, when it gives up."""
        return self.since + timedelta(seconds=self.seconds)

    def over(self, now: datetime) -> bool:
        """Tell whether it is over at `now` of the server's clock; then whoever comes next ends it."""
        return now >= self.until

    def __str__(self) -> str:
        """Return who holds until when and why, in one line without control characters."""
        return f"operator {self.by} until {self.until:%Y-%m-%d %H:%M:%S} UTC: {self.reason}"


def new_guid() -> str:
    """Return a guid that says "operator" and is as unique as any."""
    drawn = uuid.uuid4().hex
    return str(uuid.UUID(f"{_MARK}{drawn[4:12]}{_VERSION}{drawn[13:]}"))


def is_operator(name: str) -> bool:
    """Tell whether the name of a node is that of an operator's hold; it costs no read. Raises `UnreadableQueue`."""
    child = parse(name)
    return child is not None and child.guid.startswith(_MARK) and child.guid[14:15] == str(_VERSION)


def read(
    *, key: str, name: str, payload: Payload | None, token: int, owner: int, mtime: float, version: int = 0
) -> OperatorHold | None:
    """
    Return the operator's hold that a node is, None if it is none.

    `owner` is the session of an ephemeral node: a hold has none. `mtime` is in seconds since 1970, the server's.
    """
    if payload is None or owner or not is_operator(name) or not payload.about.get("operator"):
        return None
    try:
        seconds = float(payload.about.get("seconds", ""))
    except ValueError:
        return None
    if not 0 <= seconds <= LONGEST:  # nor NaN
        return None
    return OperatorHold(
        key=key,
        name=name,
        guid=payload.guid,
        token=token,
        by=plain(payload.about["operator"], MAX_BY),
        reason=plain(payload.about.get("reason", ""), MAX_REASON),
        since=datetime.fromtimestamp(max(0.0, mtime), timezone.utc),
        seconds=seconds,
        version=version,
    )


def write(payload: Payload, *, by: str, reason: str, seconds: float) -> bytes:
    """Return what is written into the node: the payload as that of an operator, with all that `read` needs."""
    by, reason = plain(by, MAX_BY), plain(reason, MAX_REASON)
    while True:
        about = {"operator": by, "reason": reason, "seconds": f"{seconds:.3f}"}
        data = replace(payload, what=f"operator {by}: {reason}", about=about).encode()
        found = Payload.decode(data)
        if found is not None and found.about == about:
            return data
        reason = reason[: len(reason) * 3 // 4 - 1] + "…"  # too much for a payload; each round it is shorter


def plain(text: str, limit: int) -> str:
    """Return text that no terminal, log or page can take for anything else: one line, nothing invisible, cut."""
    kept = "".join(
        char if unicodedata.category(char) not in _INVISIBLE else "\N{REPLACEMENT CHARACTER}"
        for char in _SPACES.sub(" ", text[: 4 * limit]).strip()
    )
    return kept if len(kept) <= limit else kept[: limit - 1] + "…"


_INVISIBLE = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
