"""
The metrics for Prometheus: counters and histograms from signals, by the table `MEASURES`, and gauges at each scrape.

Labels have few values on purpose: `lock` is the template of a lock (`inventory/{sku}`), never its key, and `kind`
is that of the hold. All signals arrive on one thread. No fork happens during a receiver, so that the locks of
`prometheus_client` are free in the child.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

from django.dispatch import Signal
from prometheus_client import REGISTRY, CollectorRegistry, Counter, Histogram
from prometheus_client.metrics_core import GaugeMetricFamily
from prometheus_client.registry import Collector

from django_zklock import conf, signals
from django_zklock.core import clock, fork
from django_zklock.core.locks.lingering import LingeringLocks, LingeringWaiter
from django_zklock.core.log import Logger
from django_zklock.core.protocol.contender import Contender
from django_zklock.core.zk import process
from django_zklock.exceptions import ZooKeeperUnavailable
from django_zklock.locks.hold import held_of
from django_zklock.report import background

logger = Logger("django_zklock.metrics")

OTHERS: Final = "(others)"
"""The label of all locks beyond the first `MAX_METRIC_LOCKS` names."""
STATES: Final = ("connecting", "connected", "suspended", "lost")
LOCK: Final = ("lock", "kind")
SECONDS: Final = (0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0)
SHARES: Final = (0.0, 0.1, 0.2, 0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6)

_forks = threading.RLock()  # held by a receiver while it counts, and during a fork


class Measure(NamedTuple):
    """A counter, or a histogram if it has buckets. Each signal gives a value for it, or None."""

    text: str
    signals: Mapping[Signal, Callable[[Any], float | None]]
    labels: Sequence[str] = LOCK
    buckets: Sequence[float] = ()


def _once(it: Any) -> float:
    return 1


def _if(condition: Callable[[Any], bool]) -> Callable[[Any], float | None]:
    return lambda it: 1 if condition(it) else None


MEASURES: Final = {
    "acquired_total": Measure("Grants of locks.", {signals.lock_acquired: _once}),
    "lost_total": Measure("Holds that were lost.", {signals.lock_lost: _once}),
    "contended_total": Measure("Locks that were not acquired before the timeout.", {signals.lock_contended: _once}),
    "deadlocks_total": Measure("Waits that a deadlock ended.", {signals.lock_deadlocked: _once}),
    "unavailable_total": Measure(
        "Acquisitions that ZooKeeper did not answer, or refused.",
        {signals.lock_failed: _if(lambda it: issubclass(it.error, ZooKeeperUnavailable))},
    ),
    "held_long_total": Measure("Holds longer than warn_after.", {signals.lock_held_long: _once}),
    "release_requests_total": Measure("Release requests seen by holders.", {signals.lock_release_requested: _once}),
    "refused_writes_total": Measure("Fenced writes of holders that were refused.", {signals.write_refused: _once}),
    "aborts_swallowed_total": Measure(
        "Aborts whose interrupt was swallowed by the work.",
        {signals.lock_lost: _if(lambda it: it.receipt is not None and it.receipt.swallowed)},
    ),
    "wait_seconds": Measure(
        "Time from the call to the grant.", {signals.lock_acquired: lambda it: it.waited}, buckets=SECONDS
    ),
    "hold_seconds": Measure(
        "Time from the grant to the release or loss.",
        {
            signals.lock_released: lambda it: it.held,
            signals.lock_lost: lambda it: clock.now() - held_of(it.hold).grant.since,
        },
        buckets=SECONDS,
    ),
    "abort_seconds": Measure(
        "Time from the abort of work to its end.",
        {signals.lock_lost: lambda it: it.receipt and it.receipt.stopped_after},
        buckets=SECONDS,
    ),
    "broken_total": Measure("Locks that were broken through this process.", {signals.lock_broken: _once}, ()),
    "lock_order_total": Measure("Orders that can lead to a deadlock.", {signals.lock_order_inverted: _once}, ()),
    "refused_releases_total": Measure("Releases that were refused.", {signals.lock_release_refused: _once}, ()),
    "sessions_lost_total": Measure(
        "Sessions that were lost.", {signals.connection_state_changed: _if(lambda it: it.state == "lost")}, ()
    ),
    "suspensions_total": Measure(
        "Connections that broke.", {signals.connection_state_changed: _if(lambda it: it.state == "suspended")}, ()
    ),
    "heartbeat_failures_total": Measure(
        "Heartbeats that no quorum has acknowledged.", {signals.heartbeat: _if(lambda it: bool(it.error))}, ()
    ),
    "heartbeat_seconds": Measure(
        "Time of a heartbeat.", {signals.heartbeat: lambda it: None if it.error else it.took}, (), SECONDS
    ),
    "lease_margin_ratio": Measure(
        "Share of the lease that is left when a heartbeat is acknowledged.",
        {signals.heartbeat: lambda it: None if it.error else it.margin / it.lease},
        (),
        SHARES,
    ),
}
GAUGES: Final = {
    "holds": ("Locks held now.", LOCK),
    "waiting": ("Callers that wait now.", LOCK),
    "oldest_hold_seconds": ("Longest hold that has no end yet.", LOCK),
    "oldest_wait_seconds": ("Longest wait that has no end yet.", LOCK),
    "waiting_tasks": ("Messages that wait for locks in this Celery worker.", ()),
    "session_state": ("1 for the state of the connection to ZooKeeper.", ("state",)),
    "incidents": ('Incidents that need attention. "unknown" is 1 if not everything was looked at.', ("cause",)),
}


def waiting_now() -> Iterator[Contender | LingeringWaiter]:
    """Yield what the callers of this process wait for. It asks no server and takes no lock."""
    session = process.peek()
    for observer in () if session is None else list(session.observers):
        if isinstance(observer, Contender) and observer.is_waited_for:
            yield observer
        elif isinstance(observer, LingeringLocks):
            yield from (waiter for waiter in observer.waiting() if waiter.waits)


class Metrics(Collector):
    """The metrics in one registry. The gauges are computed at each scrape, so nothing is left behind."""

    def __init__(self, registry: CollectorRegistry, incidents: bool = True) -> None:
        self._registry = registry
        self._incidents = incidents
        self._names: set[str] = set()  # the values of the label `lock` so far
        self.forget()
        self._receivers: list[tuple[Signal, Callable[..., None]]] = [
            (signals.lock_acquired, self._on_acquired),
            (signals.lock_released, self._on_ended),
            (signals.lock_lost, self._on_ended),
            (signals.waiting_tasks_changed, self._on_waiting_tasks),
        ]
        self._metrics: dict[str, Counter | Histogram] = {}
        for name, measure in MEASURES.items():
            more: Any = {"buckets": measure.buckets} if measure.buckets else {}
            kind = Histogram if measure.buckets else Counter
            metric = kind(f"zklock_{name}", measure.text, measure.labels, registry=registry, **more)
            self._metrics[name] = metric
            self._receivers += [
                (signal, partial(self._count, metric, value)) for signal, value in measure.signals.items()
            ]
        registry.register(self)
        for signal, receiver in self._receivers:
            signal.connect(receiver)

    def stop(self) -> None:
        """Stop counting, and remove the metrics from the registry."""
        for signal, receiver in self._receivers:
            signal.disconnect(receiver)
        for metric in (self, *self._metrics.values()):
            self._registry.unregister(metric)

    def forget(self) -> None:
        """Forget the holds of the parent process. Uses no lock: another thread may have held it during the fork."""
        self._held: dict[int, tuple[tuple[str, str], float, weakref.ref[Any]]] = {}  # by token
        self._tasks = 0

    def describe(self) -> list[GaugeMetricFamily]:
        """Return the gauges without values."""
        return [GaugeMetricFamily(f"zklock_{name}", text, labels=labels) for name, (text, labels) in GAUGES.items()]

    def collect(self) -> list[GaugeMetricFamily]:
        """Return the gauges of this moment."""
        families = self.describe()
        holds, waiting, oldest_hold, oldest_wait, tasks, states, incidents = families
        held: defaultdict[Any, list[float]] = defaultdict(list)
        waits: defaultdict[Any, list[float]] = defaultdict(list)
        now, session = clock.now(), process.peek()
        with _forks:
            for labels, since, reference in list(self._held.values()):
                if reference() is not None:  # else it was dropped without a signal
                    held[labels].append(now - since)
            for contender in waiting_now():
                if contender.wait.since is not None:
                    waits[self._labels(contender.spec.template, contender.spec.kind.word)].append(
                        now - contender.wait.since
                    )
        for ages, count, oldest in ((held, holds, oldest_hold), (waits, waiting, oldest_wait)):
            for labels, spans in ages.items():
                count.add_metric(labels, len(spans))
                oldest.add_metric(labels, max(spans))
        tasks.add_metric((), self._tasks)
        for state in STATES if session is not None else ():
            states.add_metric((state,), int(state == str(session.state)))
        for cause, number in background.causes().items() if self._incidents else ():
            incidents.add_metric((cause,), number)
        return families

    def _labels(self, template: str, kind: str) -> tuple[str, str]:
        if template in self._names or len(self._names) < conf.current().max_metric_locks:
            self._names.add(template)
            return template, kind
        logger.debug('metrics count the lock %r as "%s": see MAX_METRIC_LOCKS', template, OTHERS)
        return OTHERS, kind

    def _labels_of(self, it: Any) -> tuple[str, str]:
        about = getattr(it, "hold", it)
        return self._labels(about.template, about.kind)

    def _count(self, metric: Any, value: Callable[[Any], float | None], **kwargs: Any) -> None:
        it = SimpleNamespace(**kwargs)
        number = value(it)
        if number is None:
            return
        with _forks:
            counted = metric.labels(*self._labels_of(it)) if metric._labelnames else metric
            (counted.observe if isinstance(metric, Histogram) else counted.inc)(number)

    def _on_acquired(self, *, hold: Any, **kwargs: object) -> None:
        held, labels = held_of(hold), self._labels(hold.template, hold.kind)
        self._held[hold.token] = labels, held.grant.since, weakref.ref(held)
        with _forks:  # a counter begins at 0 before the first failure; otherwise `increase()` misses that
            for name, measure in MEASURES.items():
                if measure.labels:
                    self._metrics[name].labels(*labels)

    def _on_ended(self, *, hold: Any, **kwargs: object) -> None:
        self._held.pop(hold.token, None)

    def _on_waiting_tasks(self, *, waiting: int, **kwargs: object) -> None:
        self._tasks = waiting


_connected: dict[CollectorRegistry, Metrics] = {}


def connect(registry: CollectorRegistry | None, incidents: bool) -> None:
    """Count in a registry, unless this is done already."""
    registry = registry or REGISTRY
    if registry not in _connected:
        _connected[registry] = Metrics(registry, incidents)


def disconnect(registry: CollectorRegistry | None) -> None:
    """Stop counting in a registry, if this is done."""
    metrics = _connected.pop(registry or REGISTRY, None)
    if metrics is not None:
        metrics.stop()


def _begin_child() -> None:
    global _forks
    _forks = threading.RLock()
    for metrics in _connected.values():
        metrics.forget()


os.register_at_fork(before=lambda: _forks.acquire(), after_in_parent=lambda: _forks.release())
fork.in_child(_begin_child)
