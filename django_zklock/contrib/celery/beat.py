"""Knows how any number of `celery beat` processes share one schedule: one leads it, the others stand by."""

from __future__ import annotations

import logging
from typing import Any

from celery import Celery
from celery.beat import Scheduler
from celery.utils.imports import load_extension_class_names, qualname, symbol_by_name

from django_zklock import conf
from django_zklock.contrib.celery.holding_back import HoldingBack
from django_zklock.contrib.celery.schedule import Demoted, Entry, Ledger, Tick
from django_zklock.exceptions import ZkLockError
from django_zklock.locks.election.leader import Leader
from django_zklock.locks.hold import Hold

logger = logging.getLogger("django_zklock.beat")

DEFAULT_SCHEDULER = "celery.beat:PersistentScheduler"
LOCK = "celery-beat/{schedule}"
TURN = 5.0  # seconds that a standby waits before beat hears from it, which takes a silent scheduler for a stalled one
RETRY = 1.0  # seconds after the queue could not be entered

HEADER = "zklock_beat"
"""Header of each message: the `entry`, the number of this `tick` among all of it, and the leader's fencing `token`."""


class ZkScheduler(Scheduler):
    """
    A scheduler of which any number of processes may run, and one at a time sends what is due.

    `beat_scheduler = "django_zklock.contrib.celery:ZkScheduler"`. What is due, and when, is up to the scheduler class
    that `zklock_beat_scheduler` names (default: Celery's own `PersistentScheduler`), made anew each time this process
    comes to lead. The first in the queue of a lock leads, and those behind it follow in the order in which they came:
    at once when it ends, within the session timeout when it dies. Who loses the lead stands by again.

    Each tick is recorded in ZooKeeper before it is sent, in a transaction that only the leader's own node in the queue
    makes possible. So no tick is sent twice, however long a leader was paused, and each leader goes on where the one
    before it stopped. A leader that dies between the record and the sending takes that one tick with it.
    """

    def __init__(self, app: Celery, *args: Any, **kwargs: Any) -> None:
        aliases: Any = load_extension_class_names("celery.beat_schedulers")  # pairs, to its stubs names
        self._wrapped: type[Scheduler] = symbol_by_name(
            app.conf.get("zklock_beat_scheduler") or DEFAULT_SCHEDULER, aliases=dict(aliases)
        )
        if issubclass(self._wrapped, ZkScheduler):
            raise TypeError(f"zklock_beat_scheduler names {qualname(self._wrapped)}; name the one that it is to wrap.")
        self.name = str(app.conf.get("zklock_beat_name") or app.main or "celery")
        self._arguments = (args, {**kwargs, "lazy": False})
        self._preview = self._wrapped(app, *args, **{**kwargs, "lazy": True})
        self._leader = Leader(LOCK, fields={"schedule": self.name}, what=f"celery beat {self.name}")
        self._active: Any = None  # a `Led` of the wrapped class
        self._said = ""
        super().__init__(app, *args, **kwargs)
        self.max_interval = self._preview.max_interval

    def setup_schedule(self) -> None:
        """Set nothing up before this process leads; but say now what could never work."""
        conf.current()

    @property
    def leads(self) -> bool:
        """Whether this process leads."""
        return self._active is not None

    @property
    def schedule(self) -> Any:  # type: ignore[override]
        """The entries, by name; none while this process stands by."""
        return self._active.schedule if self._active is not None else {}

    @property
    def info(self) -> str:
        """What beat's banner says."""
        lines = [f"    . schedule -> {self.name}", f"    . wraps -> {qualname(self._wrapped)}", self._preview.info]
        return "\n".join(filter(None, lines))

    def tick(self, *args: Any, **kwargs: Any) -> float:
        """Send what is due, or stand by; return 0, as the time until the next one has passed in here."""
        try:
            if self._active is None:
                return self._stand_by()
            self._lead(self._active)
        except Demoted as demoted:
            self._step_down(str(demoted))
        return 0.0

    def should_sync(self) -> bool:
        """Leave it to `tick`."""
        return False

    def close(self) -> None:
        """Save the schedule and let the next one lead, at once; harmless when it is done twice."""
        try:
            active, self._active = self._active, None
            if active is not None:
                active.close()
        finally:
            self._leader.withdraw()

    # --- standing by and leading --------------------------------------------------------------------------------

    def _stand_by(self) -> float:
        try:
            hold = self._leader.wait(min(self.max_interval or TURN, TURN))
        except ZkLockError as error:
            self._say(logging.WARNING, f"tries again and again to stand by ({error})")
            return RETRY
        if hold is None:
            self._say(logging.INFO, f"stands by ({self._leader.position})")
        else:
            self._take_over(hold)
        return 0.0

    def _take_over(self, hold: Hold) -> None:
        ledger = Ledger(hold, conf.current().base, self.name)
        ledger.load()
        args, kwargs = self._arguments
        kind: Any = type(f"Led{self._wrapped.__name__}", (Led, self._wrapped), {"ledger": ledger})
        self._active = kind(self.app, *args, **kwargs)
        ledger.prune(self._active.schedule.values())
        self._say(logging.INFO, "leads")

    def _lead(self, active: Any) -> None:
        active.ledger.check()
        pause = active.tick()
        if pause and pause > 0:
            if active.ledger.hold.wait_lost(pause):
                active.ledger.check()
            if active.should_sync():
                active._do_sync()

    def _step_down(self, reason: str) -> None:
        logger.warning("beat leads no more, and stands by (%s); schedule %r", reason, self.name)
        self._said = ""
        active, self._active = self._active, None
        try:
            if active is not None:
                active.close()
        except Exception:
            # What another one leads by is in ZooKeeper; this process has to be ready to lead again.
            logger.exception("the scheduler of %r could not be closed", self.name)
        finally:
            self._leader.withdraw()

    def _say(self, level: int, what: str) -> None:
        if what != self._said:
            self._said = what
            logger.log(level, "beat %s; schedule %r", what, self.name)


class Led(Scheduler):
    """What goes before a class of schedulers, so that each tick is recorded before it is sent."""

    ledger: Ledger

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._holding_back = HoldingBack()
        self._taken: dict[str, Tick] = {}
        super().__init__(*args, **kwargs)

    def populate_heap(self, *args: Any, **kwargs: Any) -> None:
        """Have the entries go on where their records say, whenever they were read anew."""
        self.ledger.adopt(self.schedule.values())
        super().populate_heap(*args, **kwargs)

    def tick(self, *args: Any, **kwargs: Any) -> float:
        """Send what is due; the process does not end between the record and the sending."""
        try:
            return super().tick(*args, **kwargs)
        finally:
            self._holding_back.end()

    def reserve(self, entry: Entry) -> Any:
        """Take the tick: from here on nobody else can send it."""
        self._taken[entry.name] = self._take(entry)
        return super().reserve(entry)

    def apply_async(self, entry: Entry, producer: Any = None, advance: bool = True, **kwargs: Any) -> Any:
        """Send the tick that was taken, if this process leads still."""
        if advance:
            entry = self.reserve(entry)
        tick = self._taken.pop(entry.name, None) or self._take(entry)
        labelled = object.__new__(type(entry))  # an entry's own way to be copied is made for Celery's own only
        vars(labelled).update(vars(entry))
        label = {HEADER: {"entry": tick.entry, "tick": tick.count, "token": tick.token}}
        labelled.options = {**entry.options, "headers": {**(entry.options.get("headers") or {}), **label}}
        self.ledger.check()
        return super().apply_async(labelled, producer=producer, advance=False, **kwargs)

    def _take(self, entry: Entry) -> Tick:
        _ = self.producer  # wait for the broker first, for as long as it is away, and not with a tick in hand
        self._holding_back.begin()
        return self.ledger.take(entry)
