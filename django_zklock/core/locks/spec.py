"""One lock, as its caller wants it. This is plain data: the program around the core has applied its settings."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from django_zklock.core import clock
from django_zklock.core.protocol.grant import Grant
from django_zklock.core.protocol.spec import QueueSpec
from django_zklock.core.queue.nodes import Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """When the work under a lock is stopped."""

    abort_on: str = "suspended"
    """`suspended`, `lost` (the same without `grace`) or `never`."""
    grace: float | None = None
    """Seconds that a suspension may last before the abort. It ends with the lease at the latest. None: only then."""

    def trusts_for(self, grant: Grant) -> float:
        """Return for how many seconds a suspended grant is trusted; infinite: until the lease is over."""
        since = grant.suspect_since
        return math.inf if since is None else since + self.suspension - clock.now()

    def is_stricter_than(self, other: Policy) -> bool:
        """Return whether a suspended grant is trusted for less time than by the other policy."""
        return self.suspension < other.suspension

    @property
    def suspension(self) -> float:
        """The seconds that a suspension may last; infinite: as long as the lease."""
        return math.inf if self.grace is None or self.abort_on != "suspended" else self.grace

    def stops_at(self, grant: Grant) -> bool:
        """Return whether a loss of this grant stops the work. The end of `max_hold` always does."""
        return self.abort_on != "never" or grant.overdue


_POLICY: Final = Policy()
DEFAULT_TIMEOUT: Final = 5.0  # seconds
NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})  # one for all, as there may be thousands of locks


@dataclass(frozen=True, slots=True, kw_only=True)
class LockSpec(QueueSpec):
    """One lock, and how its caller waits for it, holds it and is aborted. Times are in seconds."""

    timeout: float | None = DEFAULT_TIMEOUT
    """How long to wait; 0 does not wait, None waits without limit. The caller of `Acquisition.acquire` passes it."""
    has_timeout: bool = False
    """Whether an option says how long to wait. Otherwise a block waits for `DEFAULT_TIMEOUT`, a call without limit."""
    policy: Policy = _POLICY
    reentrant: bool = True
    """Whether its owner may acquire it again."""
    atomic: tuple[str, ...] = ()
    """The databases on which the block is a transaction."""
    release_on: str | None = None
    """`exit` or `commit`: when a lock that was acquired inside a transaction is released; None: it is refused there."""
    what: str = ""
    """The work that it is for, as others in the queue see it; empty: the current work of the caller."""
    about: Mapping[str, str] = field(default_factory=lambda: NOTHING)
    """That work, item by item."""

    @property
    def shares(self) -> bool:
        """Whether others may hold the lock at the same time: as readers, or with other permits."""
        return self.kind in (Kind.READ, Kind.PERMIT)
