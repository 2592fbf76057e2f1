"""Any number of `celery beat` processes for one schedule: one leads and sends what is due, the others stand by."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Final, TypeAlias

from celery import Celery
from celery.beat import Scheduler, Service
from celery.signals import beat_init
from celery.utils.imports import load_extension_class_names, qualname, symbol_by_name
from django.db import close_old_connections

from django_zklock import conf
from django_zklock.contrib.celery.schedule import Entry, LeadershipLost, Run, ScheduleRecords
from django_zklock.core.execution.signals import set_handler
from django_zklock.core.execution.waiters import ThreadWaiter
from django_zklock.core.log import Logger
from django_zklock.exceptions import ZkLockError
from django_zklock.locks.election import Leader, check_entry
from django_zklock.locks.hold import Hold

logger = Logger("django_zklock.beat")

DEFAULT_SCHEDULER: Final = "celery.beat:PersistentScheduler"
LOCK: Final = "celery-beat/{schedule}"
MAX_WAIT: Final = 5.0  # seconds that one call of `tick` waits to lead; after a longer silence, beat seems to hang
RETRY: Final = 1.0  # seconds until the next try to lead; twice as long after each failure, up to `MAX_WAIT`
RELEASE_TIMEOUT: Final = 2.0  # seconds that the end of beat waits for the release
ENDS: Final = (SystemExit, KeyboardInterrupt)  # raised by a signal that ends the process

HEADER: Final = "zklock_beat"
"""Header of each message: the `entry`, the number of this `tick` of it, and the leader's fencing `token`."""


class Candidacy:
    """
    One candidate for the lead of a schedule. It waits, and holds the lock until `withdraw`, in a thread of its own.

    So beat's main thread is free to tick, and can end at once when a signal comes. A loss aborts nothing:
    `ScheduleRecords` checks the hold. The scheduler stores a candidacy before it calls `start`, because a signal may
    end beat at any moment.
    """

    def __init__(self, schedule: str) -> None:
        what = f"celery beat {schedule}"
        self._leader = Leader(LOCK, fields={"schedule": schedule}, what=what, abort_on="never")
        self._outcome: ThreadWaiter[Hold | BaseException] = ThreadWaiter()
        self._withdrawn: ThreadWaiter[bool] = ThreadWaiter()
        self._thread = threading.Thread(target=self._run, name="zklock-beat", daemon=True)

    def start(self) -> None:
        """Join the queue."""
        self._thread.start()

    def _run(self) -> None:
        try:
            with self._leader as hold:
                self._outcome.set(hold)
                self._withdrawn.wait(None)
        except BaseException as error:  # noqa: BLE001 - `wait` raises it
            self._outcome.set(error)

    def wait(self, timeout: float) -> Hold | None:
        """Return the hold, or None if another beat leads. Raises the error if this one could not join the queue."""
        outcome = self._outcome.wait(timeout)
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def withdraw(self) -> None:
        """Leave the queue, or release the lock; a signal handler may call this."""
        self._withdrawn.set(True)
        if self._outcome.value is None:
            self._leader.stop()  # the thread still waits in the queue
        if self._thread.is_alive():
            self._thread.join(RELEASE_TIMEOUT)


class ZkScheduler(Scheduler):
    """
    A scheduler that any number of beats may run. One of them leads, and sends what is due.

    Set `beat_scheduler = "django_zklock.contrib.celery.beat:ZkScheduler"`. The scheduler class that
    `zklock_beat_scheduler` names decides what is due (default: Celery's own `PersistentScheduler`). It is instantiated
    each time this process becomes the leader. The first in the queue of a lock leads. When it ends, the next one leads
    at once; when it dies, within the session timeout. A beat that loses the lead joins the queue again.

    Each run of an entry is recorded in ZooKeeper before it is sent, in a transaction that needs the leader's own znode.
    So no run is sent twice, however long a leader was paused, and a new leader continues where the last one stopped. If
    a leader dies between the record and the sending, that one run is lost.
    """

    def __init__(self, app: Celery, *args: Any, **kwargs: Any) -> None:
        aliases: Any = load_extension_class_names("celery.beat_schedulers")  # pairs, though its stubs say names
        self._wrapped: type[Scheduler] = symbol_by_name(
            app.conf.get("zklock_beat_scheduler") or DEFAULT_SCHEDULER, aliases=dict(aliases)
        )
        if not issubclass(self._wrapped, Scheduler) or issubclass(self._wrapped, ZkScheduler):
            raise TypeError(f"zklock_beat_scheduler names {qualname(self._wrapped)}; name the scheduler to be wrapped.")
        self.name = str(app.conf.get("zklock_beat_name") or app.main or "celery")
        self._arguments = (args, {**kwargs, "lazy": False})
        self._candidacy: Candidacy | None = None
        self._active: Any = None  # an instance of a subclass of `RecordingScheduler` and the wrapped class
        self._pause: float = RETRY
        self._reported: set[type[BaseException]] = {LeadershipLost}  # their tracebacks are not logged again
        self._logged = ""
        self._text = ""  # of the wrapped scheduler, for the banner
        super().__init__(app, *args, **kwargs)
        try:
            preview = self._wrapped(app, *args, **{**kwargs, "lazy": True})  # it never ticks
            self.max_interval, self._text = preview.max_interval, preview.info
        except Exception as error:  # noqa: BLE001 - it is created again to lead
            self._log_failure("could not describe its scheduler", error)

    def setup_schedule(self) -> None:
        """Check the settings. The schedule itself is set up when this process leads."""
        check_entry(LOCK)

    @property
    def leads(self) -> bool:
        """Whether this process leads."""
        return self._active is not None

    @property
    def schedule(self) -> Any:  # type: ignore[override]
        """The entries by name; none while this process stands by."""
        return self._active.schedule if self._active is not None else {}

    @property
    def info(self) -> str:
        """The text of beat's banner."""
        lines = [f"    . schedule -> {self.name}", f"    . wraps -> {qualname(self._wrapped)}", self._text]
        return "\n".join(filter(None, lines))

    def tick(self, *args: Any, **kwargs: Any) -> float:
        """Send what is due, or stand by. Returns the seconds until the next call: 0, or a pause before the next try."""
        try:
            if self._active is None:
                return self._stand_by()
            self._lead(self._active)
        except ENDS:
            raise
        except BaseException as error:  # noqa: BLE001 - the scheduler's database may be away for a while
            return self._step_down(error)
        return 0.0

    def should_sync(self) -> bool:
        """Return False: `tick` saves the schedule."""
        return False

    def close(self) -> None:
        """Save the schedule and leave the queue, so that the next beat leads at once; repeating it is harmless."""
        active, self._active = self._active, None
        candidacy, self._candidacy = self._candidacy, None
        try:
            if active is not None:
                active.close()
        except ENDS:
            raise
        except BaseException as error:  # noqa: BLE001 - the next leader relies on ZooKeeper only
            self._log_failure("could not close its scheduler", error)
        finally:
            if candidacy is not None:
                candidacy.withdraw()

    # --- standing by and leading --------------------------------------------------------------------------------

    def _stand_by(self) -> float:
        if self._candidacy is None:
            self._candidacy = Candidacy(self.name)
            self._candidacy.start()
        try:
            hold = self._candidacy.wait(min(self.max_interval or MAX_WAIT, MAX_WAIT))
        except ZkLockError as error:
            self._candidacy = None
            self._log_change(logging.WARNING, f"cannot join the queue and keeps trying ({error})")
            return RETRY
        if hold is None:
            self._log_change(logging.INFO, "stands by")
        else:
            self._begin_to_lead(hold)
        return 0.0

    def _begin_to_lead(self, hold: Hold) -> None:
        close_old_connections()  # they may have broken since this process last led
        records = ScheduleRecords(hold, conf.current().base, self.name)
        records.load()
        args, kwargs = self._arguments
        bases = (RecordingScheduler, self._wrapped)
        scheduler_class: Any = type(f"Recording{self._wrapped.__name__}", bases, {"records": records})
        self._active = scheduler_class(self.app, *args, **kwargs)
        self._prepare(self._active)
        self._log_change(logging.INFO, "leads")

    def _prepare(self, scheduler: Any) -> None:
        """
        Let the wrapped scheduler prepare itself, if its module has a receiver of `beat_init`; RedBeat has one.

        Celery has sent this signal when there was no wrapped scheduler yet.
        """
        service: Any = Service(self.app)
        service.scheduler = scheduler
        modules = {base.__module__ for base in self._wrapped.__mro__}
        init: Any = beat_init
        for receiver in init._live_receivers(service):  # looked up in Celery 5.5 to 5.7
            if receiver.__module__ in modules:
                receiver(signal=init, sender=service)

    def _lead(self, active: Any) -> None:
        active.records.check()
        pause = active.tick()
        active.records.renew(max(pause or 0.0, 0.0))
        if pause and pause > 0:
            if active.records.hold.wait_lost(pause):
                active.records.check()
            if active.should_sync():
                active._do_sync()
            self._pause, self._reported = RETRY, {LeadershipLost}

    def _step_down(self, error: BaseException) -> float:
        """Give up the lead. Returns the pause before the next try, in seconds."""
        self._logged = ""
        self._log_failure("no longer leads, and stands by", error)
        self.close()
        pause, self._pause = self._pause, min(2 * self._pause, MAX_WAIT)
        return pause

    def _log_failure(self, what: str, error: BaseException) -> None:
        """Log an error; the first one of its type with the traceback, as it may be raised every few seconds."""
        is_new = type(error) not in self._reported
        self._reported.add(type(error))
        reason = error if isinstance(error, LeadershipLost) else repr(error)
        level = logging.ERROR if is_new else logging.WARNING
        logger.log(level, "beat %s (%s); schedule %r", what, reason, self.name, exc_info=is_new)

    def _log_change(self, level: int, what: str) -> None:
        if what != self._logged:
            self._logged = what
            logger.log(level, "beat %s; schedule %r", what, self.name)


class RecordingScheduler(Scheduler):
    """A mixin for scheduler classes that records each run before it is sent."""

    records: ScheduleRecords

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._signals = DeferSignals()
        self._recorded: dict[str, Run] = {}
        super().__init__(*args, **kwargs)

    def populate_heap(self, *args: Any, **kwargs: Any) -> None:
        """Continue the entries from their records, each time the scheduler has read the entries."""
        self.records.adopt(self.schedule.values())
        super().populate_heap(*args, **kwargs)

    def tick(self, *args: Any, **kwargs: Any) -> float:
        """Send what is due. A signal does not end the process between the record and the sending."""
        try:
            return super().tick(*args, **kwargs)
        finally:
            self._signals.end()

    def reserve(self, entry: Entry) -> Any:
        """Record the run. From now on no other process can send it."""
        self._recorded[entry.name] = self._record(entry)
        return super().reserve(entry)

    def apply_async(self, entry: Entry, producer: Any = None, advance: bool = True, **kwargs: Any) -> Any:
        """Send the recorded run, if this process still leads."""
        if advance:
            entry = self.reserve(entry)
        run = self._recorded.pop(entry.name, None) or self._record(entry)
        header = {"entry": str(entry.name), "tick": run.count, "token": self.records.hold.token}
        labelled = object.__new__(type(entry))  # the copy method of an entry works for Celery's own classes only
        vars(labelled).update(vars(entry))
        labelled.options = {**entry.options, "headers": {**(entry.options.get("headers") or {}), HEADER: header}}
        self.records.check()
        return super().apply_async(labelled, producer=producer, advance=False, **kwargs)

    def _record(self, entry: Entry) -> Run:
        _ = self.producer  # wait for the broker first: a run that is recorded must be sent soon
        self._signals.begin()
        return self.records.record_run(entry)


_Handler: TypeAlias = "Callable[[int, FrameType | None], Any] | int | signal.Handlers"


class DeferSignals:
    """
    Defers the signals that end the process, from `begin` to `end`. A second signal takes effect at once.

    In a child that was forked in between, the first one does. Signals interrupt the main thread only, so in other
    threads this does nothing.
    """

    SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)

    def __init__(self) -> None:
        self._handlers: dict[int, _Handler] = {}
        self._pid = 0  # of the process that defers
        self._received: list[int] = []

    def begin(self) -> None:
        """Defer the signals from now on; repeating it is harmless."""
        if self._handlers:
            return
        self._pid = os.getpid()
        for number in self.SIGNALS:
            handler = signal.getsignal(number)
            # None was not set from Python, and could not be restored.
            if handler is not None and set_handler(number, self._receive):
                self._handlers[number] = handler

    def end(self) -> None:
        """Restore the handlers, and raise the deferred signals."""
        handlers, self._handlers = self._handlers, {}
        for number, handler in handlers.items():
            set_handler(number, handler)
        received, self._received = self._received, []
        for number in received:
            signal.raise_signal(number)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self._received.append(number)
        if len(self._received) > 1 or self._pid != os.getpid():
            self.end()
