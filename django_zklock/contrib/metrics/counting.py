"""
Knows which metrics there are, and how the signals of this package change them.

Labels are few by intent: `lock` is the template of a lock (`inventory/{sku}`), never its key, and `kind` that of the
hold. All signals come on one thread, and no fork comes in the middle of one: the library's locks are free in a child.
"""

from __future__ import annotations

import functools
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.metrics import MetricWrapperBase

from django_zklock import signals
from django_zklock.locks.held import HeldLock
from django_zklock.locks.hold import Hold
from django_zklock.locks.protocol.grant import Grant

MOST_LOCKS: Final = 500
"""Values that the label `lock` may have; more mean that keys are used as names of locks, and go by `OTHERS`."""

OTHERS: Final = "(others)"

STATES: Final = ("connecting", "connected", "suspended", "lost")

_WAIT_BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_HOLD_BUCKETS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0)
_LOCK: Final = ("lock", "kind")


_FORKS: Final = threading.RLock()  # held by a receiver while it counts, and by who forks


def _whole(receiver: Callable[..., None]) -> Callable[..., None]:
    """Let no fork come while a receiver is at it, as the child's copy of what it had locked would stay locked."""

    @functools.wraps(receiver)
    def run(self: Metrics, **kwargs: object) -> None:
        with _FORKS:
            receiver(self, **kwargs)

    return run


class Level:
    """
    A gauge of what is so now in this process, so it is empty in a forked child.

    In one process it is asked when it is collected, and takes no lock of the library's at a fork. In the library's mode
    for several processes it is written, and the library begins anew in each child.
    """

    def __init__(self, gauge: Gauge) -> None:
        self._gauge = gauge
        self._written = "PROMETHEUS_MULTIPROC_DIR" in os.environ  # as the library decides it
        self._values: dict[tuple[str, ...], int] = {}

    def set(self, labels: tuple[str, ...], value: int) -> None:
        """Set the value for some labels."""
        self._values[labels] = value
        if self._written:
            self._gauge.labels(*labels).set(value)
        else:
            self._gauge.labels(*labels).set_function(functools.partial(self.get, labels))

    def get(self, labels: tuple[str, ...]) -> int:
        """Return the value for some labels."""
        return self._values.get(labels, 0)

    def add(self, labels: tuple[str, ...], change: int) -> None:
        """Change the value for some labels."""
        self.set(labels, self.get(labels) + change)

    def forget(self) -> None:
        """Be empty."""
        self._values = {}


@dataclass(frozen=True, slots=True)
class Held:
    """How a grant was counted, and a reference that tells when its hold is dropped: there may be no signal of that."""

    labels: tuple[str, str]
    watch: weakref.ref[HeldLock]


class Metrics:
    """The metrics in one registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._made: list[MetricWrapperBase] = []
        self._names: set[str] = set()  # that the label `lock` has had
        self._open: dict[Grant, Held] = {}  # what is counted as held
        self._dropped: deque[Grant] = deque()
        self._make_levels()
        self._make_counters()
        self._receivers = (
            (signals.lock_acquired, self._on_acquired),
            (signals.lock_released, self._on_released),
            (signals.lock_lost, self._on_lost),
            (signals.lock_contended, self._on_contended),
            (signals.lock_held_long, self._on_held_long),
            (signals.lock_release_requested, self._on_release_requested),
            (signals.lock_broken, self._on_broken),
            (signals.connection_state_changed, self._on_state),
        )

    def _make_levels(self) -> None:
        held = Gauge("zklock_holds", "Locks held now.", _LOCK, registry=self._registry, multiprocess_mode="livesum")
        state = Gauge(
            "zklock_session_state",
            "1 for the state that the connection to ZooKeeper is in; of several processes, how many are.",
            ["state"],
            registry=self._registry,
            multiprocess_mode="livesum",
        )
        self._made += [held, state]
        self._held, self._state = Level(held), Level(state)

    def _make_counters(self) -> None:
        def counter(name: str, text: str, labels: tuple[str, ...] = _LOCK) -> Counter:
            made = Counter(f"zklock_{name}", text, labels, registry=self._registry)
            self._made.append(made)
            return made

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            made = Histogram(f"zklock_{name}", text, _LOCK, registry=self._registry, buckets=buckets)
            self._made.append(made)
            return made

        self._acquired = counter("acquired_total", "Grants of locks.")
        self._lost = counter("lost_total", "Holds that were lost, rather than released.")
        self._contended = counter("contended_total", "Locks not acquired, as somebody else had them.")
        self._held_long = counter("held_long_total", "Holds that went on for longer than warn_after.")
        self._release_requests = counter("release_requests_total", "Release requests that holders have seen.")
        self._broken = counter("broken_total", "Locks that were broken through this process.", ())
        self._wait = histogram("wait_seconds", "Time from the call to the grant.", _WAIT_BUCKETS)
        self._hold = histogram("hold_seconds", "Time from the grant to the release or loss.", _HOLD_BUCKETS)

    def listen(self) -> None:
        """Begin to count."""
        for signal, receiver in self._receivers:
            signal.connect(receiver)

    def stop(self) -> None:
        """Count no more, and leave the registry."""
        for signal, receiver in self._receivers:
            signal.disconnect(receiver)
        for metric in self._made:
            self._registry.unregister(metric)

    def forget(self) -> None:
        """Forget what a parent process holds; takes no lock, as a fork may have come while another thread had it."""
        self._open, self._dropped = {}, deque()
        self._held.forget()
        self._state.forget()

    def _labels(self, template: str, kind: str) -> tuple[str, str]:
        if template not in self._names:
            if len(self._names) >= MOST_LOCKS:
                return OTHERS, kind
            self._names.add(template)
        return template, kind

    def _labels_of(self, hold: Hold) -> tuple[str, str]:
        # As it was counted when it was granted, though it may have become a reader since.
        counted = self._open.get(hold._grant)
        return self._labels(hold.template, hold.kind) if counted is None else counted.labels

    @_whole
    def _on_acquired(self, *, hold: Hold, waited: float, **kwargs: object) -> None:
        self._end_dropped()
        labels = self._labels(hold.template, hold.kind)
        grant, dropped = hold._grant, self._dropped
        self._open[grant] = Held(labels, weakref.ref(hold._held, lambda _: dropped.append(grant)))
        self._held.add(labels, 1)
        self._acquired.labels(*labels).inc()
        self._wait.labels(*labels).observe(waited)

    @_whole
    def _on_released(self, *, hold: Hold, held: float, **kwargs: object) -> None:
        self._end(hold, held)

    @_whole
    def _on_lost(self, *, hold: Hold, **kwargs: object) -> None:
        self._lost.labels(*self._labels_of(hold)).inc()
        self._end(hold, time.monotonic() - hold._grant.since)

    def _end(self, hold: Hold, held: float) -> None:
        self._end_dropped()
        counted = self._open.pop(hold._grant, None)
        if counted is not None:  # else it was granted before this began to count, or has had its end
            self._held.add(counted.labels, -1)
            self._hold.labels(*counted.labels).observe(held)

    def _end_dropped(self) -> None:
        while self._dropped:
            grant = self._dropped.popleft()
            if not grant.parts:  # else the body of a response, or a block inside, goes on with it
                counted = self._open.pop(grant, None)
                if counted is not None:
                    self._held.add(counted.labels, -1)

    @_whole
    def _on_contended(self, *, template: str, kind: str, **kwargs: object) -> None:
        self._contended.labels(*self._labels(template, kind)).inc()

    @_whole
    def _on_held_long(self, *, hold: Hold, **kwargs: object) -> None:
        self._held_long.labels(*self._labels_of(hold)).inc()

    @_whole
    def _on_release_requested(self, *, hold: Hold, **kwargs: object) -> None:
        self._release_requests.labels(*self._labels_of(hold)).inc()

    @_whole
    def _on_broken(self, **kwargs: object) -> None:
        self._broken.inc()  # what it is a lock of, only its holder can be trusted to know

    @_whole
    def _on_state(self, *, state: str, **kwargs: object) -> None:
        for each in STATES:
            self._state.set((each,), int(each == state))


_connected: dict[CollectorRegistry, Metrics] = {}


def connect(registry: CollectorRegistry | None) -> None:
    """Count in a registry, unless that is done already."""
    registry = REGISTRY if registry is None else registry
    if registry not in _connected:
        _connected[registry] = Metrics(registry)
        _connected[registry].listen()


def disconnect(registry: CollectorRegistry | None) -> None:
    """Count in it no more, if that is done."""
    metrics = _connected.pop(REGISTRY if registry is None else registry, None)
    if metrics is not None:
        metrics.stop()


def _begin_child() -> None:
    for metrics in _connected.values():
        metrics.forget()
    _FORKS.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_FORKS.acquire, after_in_parent=_FORKS.release, after_in_child=_begin_child)
