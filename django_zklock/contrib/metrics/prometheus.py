"""
The metrics for Prometheus, and the receivers of signals that change them.

Labels have few values on purpose: `lock` is the template of a lock (`inventory/{sku}`), never its key, and `kind`
is that of the hold. All signals arrive on one thread. No fork happens during a receiver, so that the locks of
`prometheus_client` are free in the child.
"""

from __future__ import annotations

import functools
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, TypeVar

from django.core.exceptions import ImproperlyConfigured
from django.dispatch import Signal
from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.metrics_core import GaugeMetricFamily
from prometheus_client.registry import Collector

from django_zklock import conf, signals
from django_zklock.core import clock, fork
from django_zklock.core.locks.guard import Receipt
from django_zklock.core.locks.held import HeldLock
from django_zklock.core.locks.lingering import LingeringLocks, LingeringWaiter
from django_zklock.core.log import Logger
from django_zklock.core.protocol.contender import Contender
from django_zklock.core.protocol.grant import Grant
from django_zklock.core.zk import process
from django_zklock.exceptions import ZooKeeperUnavailable
from django_zklock.locks.hold import Hold, held_of
from django_zklock.locks.lock import kind_of
from django_zklock.report import background

logger = Logger("django_zklock.metrics")

OTHERS: Final = "(others)"
"""The label of all locks beyond the first `MAX_METRIC_LOCKS` names."""

STATES: Final = ("connecting", "connected", "suspended", "lost")

_WAIT_BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_HOLD_BUCKETS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0)
_ABORT_BUCKETS: Final = (0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_HEARTBEAT_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
_MARGIN_BUCKETS: Final = (0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6)
_LOCK: Final = ("lock", "kind")
_Metric = TypeVar("_Metric", bound=MetricWrapperBase)
_Times: TypeAlias = dict[tuple[str, str], list[float]]  # moments by labels

_forks = threading.RLock()  # held by a receiver while it counts, and during a fork


def _increment(counter: Counter, **kwargs: object) -> None:
    counter.inc()


def _without_fork(receiver: Callable[..., None]) -> Callable[..., None]:
    """Allow no fork during a receiver: the locks of the library that it holds would stay locked in the child."""

    @functools.wraps(receiver)
    def run(**kwargs: object) -> None:
        with _forks:
            receiver(**kwargs)

    return run


class ProcessGauge:
    """
    A gauge for the state of this process; it is empty in a forked child.

    Normally the library calls `get` when it collects. In its mode for several processes, each value is written to the
    library, which starts from zero in a child.
    """

    def __init__(self, gauge: Gauge) -> None:
        self._gauge = gauge
        self._written = "PROMETHEUS_MULTIPROC_DIR" in os.environ  # the condition of the library itself
        self._values: dict[tuple[str, ...], int] = {}

    def set(self, labels: tuple[str, ...], value: int) -> None:
        """Set the value for these labels."""
        self._values[labels] = value
        gauge = self._gauge.labels(*labels) if labels else self._gauge
        if self._written:
            gauge.set(value)
        else:
            gauge.set_function(functools.partial(self.get, labels))

    def get(self, labels: tuple[str, ...]) -> int:
        """Return the value for these labels."""
        return self._values.get(labels, 0)

    def add(self, labels: tuple[str, ...], change: int) -> None:
        """Change the value for these labels."""
        self.set(labels, self.get(labels) + change)

    def clear(self) -> None:
        """Set all values to 0."""
        self._values = {}


@dataclass(frozen=True, slots=True)
class CountedHold:
    """A grant that is counted as held."""

    labels: tuple[str, str]
    since: float  # on clock.now()
    held: weakref.ref[HeldLock]
    """Its callback runs when the hold is garbage-collected. Then there may be no signal of its end."""


def waiting_now() -> Iterator[Contender | LingeringWaiter]:
    """Yield what the callers of this process wait for. It asks no server and takes no lock."""
    session = process.peek()
    for observer in () if session is None else list(session.observers):
        if isinstance(observer, Contender) and observer.is_waited_for:
            yield observer
        elif isinstance(observer, LingeringLocks):
            yield from (waiter for waiter in observer.waiting() if waiter.waits)


class IncidentsCollector(Collector):
    """The gauge of incidents: of the last look at all locks. A scrape only begins the next one."""

    def describe(self) -> list[GaugeMetricFamily]:
        """Return the metric without values."""
        text = 'Incidents that need attention. "unknown" is 1 if not everything was looked at.'
        return [GaugeMetricFamily("zklock_incidents", text, labels=("cause",))]

    def collect(self) -> list[GaugeMetricFamily]:
        """Return the metric of the last look."""
        (family,) = self.describe()
        for cause, count in background.causes().items():
            family.add_metric((cause,), count)
        return [family]


class UnfinishedCollector(Collector):
    """Gauges of the waits and holds that have no end yet. They are computed at each scrape, so none is left behind."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def describe(self) -> list[GaugeMetricFamily]:
        """Return the metrics without values."""
        return [
            GaugeMetricFamily("zklock_waiting", "Callers that wait now.", labels=_LOCK),
            GaugeMetricFamily("zklock_oldest_wait_seconds", "Longest wait that has no end yet.", labels=_LOCK),
            GaugeMetricFamily("zklock_oldest_hold_seconds", "Longest hold that has no end yet.", labels=_LOCK),
        ]

    def collect(self) -> list[GaugeMetricFamily]:
        """Return the metrics of this moment."""
        families = self.describe()
        waiting, oldest_wait, oldest_hold = families
        waits, holds = self._metrics.unfinished()
        now = clock.now()
        for labels, since in waits.items():
            waiting.add_metric(labels, len(since))
            oldest_wait.add_metric(labels, max(0.0, now - min(since)))
        for labels, since in holds.items():
            oldest_hold.add_metric(labels, max(0.0, now - min(since)))
        return families


class Metrics:
    """The metrics in one registry, which are counted from now on."""

    def __init__(self, registry: CollectorRegistry, incidents: bool = True) -> None:
        self._registry = registry
        self._made: list[MetricWrapperBase | Collector] = []
        self._names: set[str] = set()  # the values of the label `lock` so far
        self._is_full = False  # a name was refused, and the log says so
        self._has_begun = False  # the counters of the locks in the settings exist
        self._counted: dict[int, CountedHold] = {}  # by token
        self._deleted: deque[Grant] = deque()  # those whose hold was garbage-collected
        collectors: list[Collector] = [UnfinishedCollector(self)]
        if incidents:
            collectors.append(IncidentsCollector())
        for collector in collectors:
            registry.register(collector)  # first, so that each scrape has the counters that it begins
            self._made.append(collector)
        self._make_metrics()
        self._make_histograms()
        receivers: tuple[tuple[Signal, Callable[..., None]], ...] = (
            (signals.lock_acquired, self._on_acquired),
            (signals.lock_released, self._on_released),
            (signals.lock_lost, self._on_lost),
            (signals.lock_contended, functools.partial(self._count, self._contended)),
            (signals.lock_deadlocked, functools.partial(self._count, self._deadlocks)),
            (signals.lock_order_inverted, functools.partial(_increment, self._orders)),
            (signals.lock_failed, self._on_failed),
            (signals.lock_held_long, functools.partial(self._count_hold, self._held_long)),
            (signals.lock_release_requested, functools.partial(self._count_hold, self._release_requests)),
            (signals.lock_broken, functools.partial(_increment, self._broken)),  # only the holder knows the template
            (signals.lock_release_refused, functools.partial(_increment, self._refused_releases)),
            (signals.write_refused, functools.partial(self._count, self._refused)),
            (signals.waiting_tasks_changed, self._on_waiting_tasks),
            (signals.heartbeat, self._on_heartbeat),
            (signals.connection_state_changed, self._on_state),
        )
        self._receivers = tuple((signal, _without_fork(receiver)) for signal, receiver in receivers)
        for signal, receiver in self._receivers:
            signal.connect(receiver)

    def _add(self, kind: type[_Metric], name: str, text: str, labels: tuple[str, ...] = _LOCK, **more: Any) -> _Metric:
        metric = kind(f"zklock_{name}", text, labels, registry=self._registry, **more)
        self._made.append(metric)
        return metric

    def _make_metrics(self) -> None:
        counter = functools.partial(self._add, Counter)
        gauge = functools.partial(self._add, Gauge, multiprocess_mode="livesum")
        self._holds_now = ProcessGauge(gauge("holds", "Locks held now."))
        self._waiting_tasks = ProcessGauge(
            gauge("waiting_tasks", "Messages that wait for locks in this Celery worker.", ())
        )
        text = "1 for the state of the connection to ZooKeeper; with several processes, the number of processes."
        self._state = ProcessGauge(gauge("session_state", text, ("state",)))
        self._acquired = counter("acquired_total", "Grants of locks.")
        self._lost = counter("lost_total", "Holds that were lost.")
        self._contended = counter("contended_total", "Locks that were not acquired before the timeout.")
        self._deadlocks = counter("deadlocks_total", "Waits that were ended because they were part of a deadlock.")
        self._unavailable = counter("unavailable_total", "Acquisitions that ZooKeeper did not answer, or refused.")
        self._held_long = counter("held_long_total", "Holds longer than warn_after.")
        self._release_requests = counter("release_requests_total", "Release requests that holders have seen.")
        self._swallowed = counter("aborts_swallowed_total", "Aborts whose interrupt was swallowed by the work.")
        self._broken = counter("broken_total", "Locks that were broken through this process.", ())
        self._orders = counter("lock_order_total", "Orders of locks that can lead to a deadlock.", ())
        self._refused_releases = counter("refused_releases_total", "Releases that ZooKeeper has refused.", ())
        self._refused = counter("refused_writes_total", "Fenced writes of holders that were refused.")
        self._sessions_lost = counter("sessions_lost_total", "Sessions that were lost.", ())
        self._suspensions = counter("suspensions_total", "Connections to ZooKeeper that broke.", ())
        self._failed_heartbeats = counter("heartbeat_failures_total", "Heartbeats that no quorum has acknowledged.", ())
        # These begin at 0 before the first failure, as far as the lock is known. Otherwise `increase()` misses that.
        self._from_zero = (
            *(self._lost, self._swallowed, self._contended, self._deadlocks, self._unavailable, self._held_long),
            self._refused,
        )

    def _make_histograms(self) -> None:
        histogram = functools.partial(self._add, Histogram)
        self._wait_seconds = histogram("wait_seconds", "Time from the call to the grant.", buckets=_WAIT_BUCKETS)
        text = "Time from the grant to the release or loss."
        self._hold_seconds = histogram("hold_seconds", text, buckets=_HOLD_BUCKETS)
        self._abort_seconds = histogram(
            "abort_seconds", "Time from the abort of work to its end.", buckets=_ABORT_BUCKETS
        )
        text = "Time until a quorum acknowledges a heartbeat."
        self._heartbeat_seconds = histogram("heartbeat_seconds", text, (), buckets=_HEARTBEAT_BUCKETS)
        text = "Share of the lease that is left when a heartbeat is acknowledged."
        self._lease_margin = histogram("lease_margin_ratio", text, (), buckets=_MARGIN_BUCKETS)

    def stop(self) -> None:
        """Stop counting, and remove the metrics from the registry."""
        for signal, receiver in self._receivers:
            signal.disconnect(receiver)
        for metric in self._made:
            self._registry.unregister(metric)

    def forget(self) -> None:
        """Forget the holds of the parent process. Uses no lock: another thread may have held it during the fork."""
        self._counted, self._deleted = {}, deque()
        self._holds_now.clear()
        self._waiting_tasks.clear()
        self._state.clear()

    def _labels(self, template: str, kind: str) -> tuple[str, str]:
        if template not in self._names:
            most = conf.current().max_metric_locks
            if len(self._names) >= most:
                if not self._is_full:
                    self._is_full = True
                    logger.warning(
                        'metrics count the lock %r as "%s": there are %d names already. Pass keys as fields, '
                        "or raise MAX_METRIC_LOCKS",
                        template,
                        OTHERS,
                        most,
                    )
                return OTHERS, kind
            self._names.add(template)
        return template, kind

    def unfinished(self) -> tuple[_Times, _Times]:
        """Return since when callers wait, and since when locks are held, by labels; on clock.now()."""
        waits: _Times = {}
        holds: _Times = {}
        with _forks:
            if not self._has_begun:
                self._begin_counters()
            for contender in waiting_now():
                labels = self._labels(contender.spec.template, contender.spec.kind.word)
                self._begin_at_zero(labels)
                since = contender.wait.since
                if since is not None:
                    waits.setdefault(labels, []).append(since)
            for counted in list(self._counted.values()):
                if counted.held() is not None:
                    holds.setdefault(counted.labels, []).append(counted.since)
        return waits, holds

    def _begin_counters(self) -> None:
        """Let the counters of the locks in the settings begin at 0."""
        self._has_begun = True
        try:
            config = conf.current()
        except ImproperlyConfigured:
            return  # no lock works then, and a scrape must
        for name in config.locks:
            options = config.options_for(name)
            self._begin_at_zero(self._labels(options["path"], kind_of(options).word))

    def _begin_at_zero(self, labels: tuple[str, str]) -> None:
        """Create the counters with these labels, unless they exist."""
        for counter in self._from_zero:
            counter.labels(*labels)

    def _labels_of(self, hold: Hold) -> tuple[str, str]:
        # As it was counted when it was granted; a writer may have become a reader since.
        counted = self._counted.get(hold.token)
        return self._labels(hold.template, hold.kind) if counted is None else counted.labels

    def _on_acquired(self, *, hold: Hold, waited: float, **kwargs: object) -> None:
        self._end_deleted()
        labels = self._labels(hold.template, hold.kind)
        held, deleted = held_of(hold), self._deleted
        grant = held.grant
        reference = weakref.ref(held, lambda _: deleted.append(grant))
        self._counted[hold.token] = CountedHold(labels, grant.since, reference)
        self._begin_at_zero(labels)
        self._holds_now.add(labels, 1)
        self._acquired.labels(*labels).inc()
        self._wait_seconds.labels(*labels).observe(waited)

    def _on_released(self, *, hold: Hold, **kwargs: object) -> None:
        self._end(hold.token)

    def _on_lost(self, *, hold: Hold, receipt: Receipt | None, **kwargs: object) -> None:
        labels = self._labels_of(hold)
        self._lost.labels(*labels).inc()
        if receipt is not None:
            self._abort_seconds.labels(*labels).observe(receipt.stopped_after)
            self._swallowed.labels(*labels).inc(int(receipt.swallowed))
        self._end(hold.token)

    def _end(self, token: int) -> None:
        self._end_deleted()
        counted = self._counted.pop(token, None)
        if counted is not None:  # else it was granted before the counting, or has ended already
            self._holds_now.add(counted.labels, -1)
            self._hold_seconds.labels(*counted.labels).observe(clock.now() - counted.since)

    def _end_deleted(self) -> None:
        while self._deleted:
            grant = self._deleted.popleft()
            if not grant.shares:  # else another block still holds the lock
                counted = self._counted.pop(grant.token, None)
                if counted is not None:
                    self._holds_now.add(counted.labels, -1)

    def _count(self, counter: Counter, *, template: str, kind: str, **kwargs: object) -> None:
        counter.labels(*self._labels(template, kind)).inc()

    def _count_hold(self, counter: Counter, *, hold: Hold, **kwargs: object) -> None:
        counter.labels(*self._labels_of(hold)).inc()

    def _on_failed(self, *, error: type[BaseException], template: str, kind: str, **kwargs: object) -> None:
        if issubclass(error, ZooKeeperUnavailable):
            self._unavailable.labels(*self._labels(template, kind)).inc()

    def _on_waiting_tasks(self, *, waiting: int, **kwargs: object) -> None:
        self._waiting_tasks.set((), waiting)

    def _on_state(self, *, state: str, **kwargs: object) -> None:
        for name in STATES:
            self._state.set((name,), int(name == state))
        if state == "suspended":
            self._suspensions.inc()
        elif state == "lost":
            self._sessions_lost.inc()

    def _on_heartbeat(self, *, took: float, margin: float, lease: float, error: str, **kwargs: object) -> None:
        if error:
            self._failed_heartbeats.inc()
        else:
            self._heartbeat_seconds.observe(took)
            self._lease_margin.observe(margin / lease)


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


def _prevent() -> None:
    _forks.acquire()


def _permit() -> None:
    _forks.release()


def _begin_child() -> None:
    global _forks
    _forks = threading.RLock()
    for metrics in _connected.values():
        metrics.forget()


os.register_at_fork(before=_prevent, after_in_parent=_permit)
fork.in_child(_begin_child)
