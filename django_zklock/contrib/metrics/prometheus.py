"""
The metrics for Prometheus: counters and histograms from signals, by the table `MEASURES`, and gauges at each scrape.

Labels have few values on purpose: `lock` is the template of a lock (`inventory/{sku}`), never its key, and `kind`
is that of the hold. All signals arrive on one thread. No fork happens during a receiver, so that the locks of
`prometheus_client` are free in the child.
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, NamedTuple, TypeAlias

from django.dispatch import Signal
from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.metrics_core import GaugeMetricFamily
from prometheus_client.registry import Collector

from django_zklock import conf, signals
from django_zklock.core import clock, fork
from django_zklock.core.locks.held import held_locks
from django_zklock.core.locks.lingering import LingeringLocks, LingeringWaiter
from django_zklock.core.log import Logger
from django_zklock.core.protocol.contender import Contender
from django_zklock.core.zk import process
from django_zklock.core.zk.loop import quiet_thread
from django_zklock.exceptions import LockNotAcquired, ZooKeeperUnavailable
from django_zklock.locks.hold import Hold, held_of
from django_zklock.report import background

logger = Logger("django_zklock.metrics")

OTHERS: Final = "(others)"
"""The label of all locks beyond the first `MAX_METRIC_LOCKS` names."""
STATES: Final = ("connecting", "connected", "suspended", "lost")
LOCK: Final = ("lock", "kind")
SECONDS: Final = (0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0)
SHARES: Final = (0.0, 0.1, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6)

_Labels: TypeAlias = tuple[str, ...]
_Values: TypeAlias = Mapping[_Labels, Sequence[float]]
_Value: TypeAlias = Callable[[Any], float | None]
"""It gets the arguments of a signal as attributes, and returns what to count or to observe; None for nothing."""

SEVERAL: Final = "PROMETHEUS_MULTIPROC_DIR"
"""The variable by which `prometheus_client` adds up several processes."""
WRITE_EVERY: Final = 1.0  # seconds

_forks = threading.RLock()  # held by a receiver while it counts, and during a fork


class Measure(NamedTuple):
    """A counter, or a histogram if it has buckets. Each of its signals gives it a value."""

    text: str
    signals: Mapping[Signal, _Value]
    labels: Sequence[str] = LOCK
    buckets: Sequence[float] = ()


def _once(it: Any) -> float:
    return 1


def _if(condition: Callable[[Any], bool]) -> _Value:
    return lambda it: 1 if condition(it) else None


MEASURES: Final = {
    "acquired_total": Measure("Grants of locks.", {signals.lock_acquired: _once}),
    "lost_total": Measure("Holds that were lost.", {signals.lock_lost: _once}),
    "contended_total": Measure(
        "Locks that were not acquired before the timeout.",
        {signals.lock_failed: _if(lambda it: issubclass(it.error, LockNotAcquired) and not it.circle)},
    ),
    "deadlocks_total": Measure("Waits that a deadlock ended.", {signals.lock_failed: _if(lambda it: bool(it.circle))}),
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
        {signals.lock_lost: lambda it: None if it.receipt is None else it.receipt.stopped_after},
        buckets=SECONDS,
    ),
    "broken_total": Measure("Locks that were broken through this process.", {signals.lock_broken: _once}, ()),
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


def waiting_now() -> Iterator[Contender | LingeringWaiter]:
    """Yield what the callers of this process wait for. It asks no server and takes no lock."""
    session = process.peek()
    for observer in () if session is None else list(session.observers):
        if isinstance(observer, Contender) and observer.is_waited_for:
            yield observer
        elif isinstance(observer, LingeringLocks):
            yield from (waiter for waiter in observer.waiting() if waiter.waits)


class Metrics:
    """The counters and histograms in one registry, and what its gauges need."""

    def __init__(self, registry: CollectorRegistry, incidents: bool) -> None:
        self._registry = registry
        self._names: set[str] = set()  # the values of the label `lock` so far
        self._is_full = False  # a name was refused, and the log says so
        self.waiting_tasks = 0
        self._receivers: list[tuple[Signal, Callable[..., None]]] = [
            (signals.lock_acquired, self._on_acquired),
            (signals.waiting_tasks_changed, self._on_waiting_tasks),
        ]
        self._metrics: dict[str, Counter | Histogram] = {}
        for name, measure in MEASURES.items():
            more: Any = {"buckets": measure.buckets} if measure.buckets else {}
            kind = Histogram if measure.buckets else Counter
            self._metrics[name] = kind(f"zklock_{name}", measure.text, measure.labels, registry=registry, **more)
            self._receivers += [
                (signal, partial(self._count, name, value)) for signal, value in measure.signals.items()
            ]
        self._gauges = (WrittenGauges if SEVERAL in os.environ else Gauges)(self, registry, incidents)
        for signal, receiver in self._receivers:
            signal.connect(receiver)

    def stop(self) -> None:
        """Stop counting, and remove the metrics from the registry."""
        for signal, receiver in self._receivers:
            signal.disconnect(receiver)
        self._gauges.stop()
        for metric in self._metrics.values():
            self._registry.unregister(metric)

    def forget(self) -> None:
        """Forget what belongs to the parent. Uses no lock: another thread may have held it during the fork."""
        self.waiting_tasks = 0
        self._gauges.forget()

    def holds(self) -> _Values:
        """Return for how long locks are held, in seconds by labels."""
        holds: defaultdict[_Labels, list[float]] = defaultdict(list)
        for grant in {held.grant for held in held_locks.all()}:
            if grant.why_invalid() is None:
                holds[self._labels(grant.template, grant.kind.word)].append(max(0.0, clock.now() - grant.since))
        return holds

    def waits(self) -> _Values:
        """Return for how long callers wait, in seconds by labels."""
        waits: defaultdict[_Labels, list[float]] = defaultdict(list)
        for contender in waiting_now():
            if contender.wait.since is not None:
                labels = self._labels(contender.spec.template, contender.spec.kind.word)
                waits[labels].append(max(0.0, clock.now() - contender.wait.since))
        return waits

    def _labels(self, template: str, kind: str) -> _Labels:
        most = conf.current().max_metric_locks
        if template in self._names or len(self._names) < most:
            self._names.add(template)
            return template, kind
        if not self._is_full:
            self._is_full = True
            logger.warning(
                'metrics count the lock %r as "%s": there are %d names already. Pass keys as fields, or raise '
                "MAX_METRIC_LOCKS",
                template,
                OTHERS,
                most,
            )
        return OTHERS, kind

    def _count(self, name: str, value: _Value, **arguments: Any) -> None:
        it = SimpleNamespace(**arguments)
        number = value(it)
        if number is None:
            return
        metric: Any = self._metrics[name]
        with _forks:
            if MEASURES[name].labels:
                about = getattr(it, "hold", it)
                metric = metric.labels(*self._labels(about.template, about.kind))
            if MEASURES[name].buckets:
                metric.observe(number)
            else:
                metric.inc(number)

    def _on_acquired(self, *, hold: Hold, **kwargs: object) -> None:
        labels = self._labels(hold.template, hold.kind)
        with _forks:  # a counter begins at 0 before the first failure; otherwise `increase()` misses that
            for name, measure in MEASURES.items():
                if measure.labels and not measure.buckets:
                    self._metrics[name].labels(*labels)

    def _on_waiting_tasks(self, *, waiting: int, **kwargs: object) -> None:
        self.waiting_tasks = waiting


def _states(metrics: Metrics) -> _Values:
    session = process.peek()
    return {} if session is None else {(state,): [state == str(session.state)] for state in STATES}


def _causes(metrics: Metrics) -> _Values:
    return {(cause,): [number] for cause, number in background.causes().items()}


class Reading(NamedTuple):
    """A gauge: what its values are read from, by labels, and how one is made of several."""

    text: str
    read: Callable[[Metrics], _Values]
    join: Callable[[Sequence[float]], float] = max
    labels: Sequence[str] = LOCK
    mode: Any = ""
    """The mode of `prometheus_client` for several processes; empty if they do not have this gauge."""

    def values(self, metrics: Metrics) -> dict[_Labels, float]:
        """Return the present values, by labels."""
        return {labels: self.join(values) for labels, values in self.read(metrics).items()}


INCIDENTS: Final = "incidents"
READINGS: Final = {
    "holds": Reading("Locks held now.", Metrics.holds, len),
    "oldest_hold_seconds": Reading("Longest hold that has no end yet.", Metrics.holds),
    "waiting": Reading("Callers that wait now.", Metrics.waits, len),
    "oldest_wait_seconds": Reading("Longest wait that has no end yet.", Metrics.waits),
    "waiting_tasks": Reading(
        "Messages that wait for locks in this Celery worker.",
        lambda it: {(): [it.waiting_tasks]},
        labels=(),
        mode="livesum",
    ),
    "session_state": Reading(
        "1 for the state of the connection; with several processes, their number.",
        _states,
        labels=("state",),
        mode="livesum",
    ),
    INCIDENTS: Reading(
        'Incidents that need attention. "unknown" is 1 if not everything was looked at.',
        _causes,
        labels=("cause",),
        mode="livemostrecent",
    ),
}


class Gauges(Collector):
    """The gauges of one registry. They are read at each scrape, so nothing is left behind."""

    def __init__(self, metrics: Metrics, registry: CollectorRegistry, incidents: bool) -> None:
        self._metrics = metrics
        self._registry = registry
        self._readings = {name: reading for name, reading in READINGS.items() if incidents or name != INCIDENTS}
        registry.register(self)

    def stop(self) -> None:
        """Remove them from the registry."""
        self._registry.unregister(self)

    def forget(self) -> None:
        """Do nothing: what they show is not theirs."""

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the gauges of this moment."""
        for name, reading in self._readings.items():
            family = GaugeMetricFamily(f"zklock_{name}", reading.text, labels=reading.labels)
            for labels, value in reading.values(self._metrics).items():
                family.add_metric(labels, value)
            yield family

    describe = collect


class WrittenGauges:
    """
    The gauges of several processes. Each writes its own into the folder of the library, which does not ask them.

    Incidents are about all locks, so one of the processes looks: the one that has a lock on a file in that folder.
    """

    def __init__(self, metrics: Metrics, registry: CollectorRegistry, incidents: bool) -> None:
        self._metrics = metrics
        self._registry = registry
        self._gauges = {
            name: Gauge(
                f"zklock_{name}", reading.text, reading.labels, registry=registry, multiprocess_mode=reading.mode
            )
            for name, reading in READINGS.items()
            if reading.mode and (incidents or name != INCIDENTS)
        }
        self._file = -1  # the one that is locked; of this process
        self._ended: threading.Event | None = None  # set when the thread is to end; None without a thread
        signals.connection_state_changed.connect(self._on_connection)

    def stop(self) -> None:
        """Stop writing, and remove them from the registry."""
        signals.connection_state_changed.disconnect(self._on_connection)
        if self._ended is not None:
            self._ended.set()
        for gauge in self._gauges.values():
            self._registry.unregister(gauge)

    def forget(self) -> None:
        """Give back the lock on the file, which the parent process still has. The thread is not in this child."""
        self._ended = None
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _on_connection(self, **kwargs: object) -> None:
        if self._ended is None:
            self._ended = threading.Event()
            quiet_thread("zklock-gauges", partial(self._write, self._ended)).start()

    def _write(self, ended: threading.Event) -> None:
        """Write the gauges again and again; the incidents only if this process has the lock on the file."""
        self._file = os.open(Path(os.environ[SEVERAL]) / "zklock_incidents.lock", os.O_CREAT | os.O_RDWR, 0o600)
        while not ended.wait(WRITE_EVERY):
            for name, gauge in self._gauges.items():
                if name != INCIDENTS or self._is_locked():
                    values = READINGS[name].values(self._metrics)
                    with _forks:
                        for labels, value in values.items():
                            (gauge.labels(*labels) if labels else gauge).set(value)
        self.forget()

    def _is_locked(self) -> bool:
        """Lock the file, or return False if another process has it."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


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
