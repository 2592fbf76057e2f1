"""What one contender queues for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from django_zklock.queue import rules
from django_zklock.queue.nodes import Kind
from django_zklock.queue.operator_hold import HoldLabel


@dataclass(frozen=True, slots=True, kw_only=True)
class ContenderSpec:
    """What a contender queues for."""

    key: str
    parent: str  # path of the key's directory
    rule: rules.Rule
    kind: Kind
    compat: str | None = None  # the client whose names it gets; None: our own, which follow Curator's grammar
    lasting: bool = False  # its directory is not deleted when it is empty
    min_hold: float = 0.0  # seconds from the grant; until then an operator hold replaces the znode on release
    operator: HoldLabel | None = None  # the person who holds it; None: the work holds it
    patient: bool  # False: look first, and write nothing if the queue is not empty
    payload: Callable[[str], bytes]  # from the guid of the znode to its data
    only_look: bool = False  # never enter
    max_waiters: int | None = None  # how many others may wait; with more, give up at once
    deadline: float | None = None  # when the caller gives up, on time.monotonic()
    about: Mapping[str, str] = field(default_factory=dict)  # the work it is for, for log records
    template: str = ""  # the template of the key
