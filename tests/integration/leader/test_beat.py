"""Several `celery beat` processes share one schedule: one leads, the others stand by."""

import signal
import time

import pytest
from celery import Celery
from celery.beat import Scheduler
from celery.signals import beat_init
from django.core.exceptions import ImproperlyConfigured
from django.test import override_settings
from support.beats import Beats, each_tick_once, longest_gap
from support.faults import BackgroundCall, expire
from support.zoo import ROOM, eventually

from django_zklock.contrib.celery.beat import LOCK, MAX_WAIT, RETRY, ZkScheduler

pytestmark = pytest.mark.django_db  # a beat closes its old connections


@pytest.fixture
def beats(zoo, tmp_path):
    with Beats(zoo, tmp_path, {"often": 0.5}, session_timeout=20) as beats:
        yield beats


def test_the_second_beat_continues_at_once_when_the_first_one_stops(beats):
    """An orderly stop loses no tick, not even the one that is being sent when the stop is asked for."""
    (first,) = beats.start("first")
    beats.wait_sent(2)
    (second,) = beats.start("second")
    beats.wait_queue(first, second)
    assert second.stop() == 0
    beats.wait_queue(first, timeout=1)
    second.start()
    beats.wait_queue(first, second)
    beats.wait_sent(2, since=beats.sent()[-1].at)
    first.strike(signal.SIGTERM)
    assert first.process.wait(30) == 0
    ended = time.monotonic()
    beats.wait_queue(second)
    after = beats.wait_sent(2, since=ended)
    messages = beats.sent()
    each_tick_once(messages)
    assert [message.tick for message in messages] == list(range(1, len(messages) + 1))
    assert messages[0].token < messages[-1].token
    assert longest_gap(messages, messages[0].at, after[-1].at) < 0.5 + 1 + ROOM
    assert beats.records()["often"] >= messages[-1].tick
    assert second.stop() == 0
    beats.wait_queue(timeout=1)


def test_a_beat_that_loses_the_lead_stands_by_and_leads_again(zoo):
    scheduler = scheduler_of("celery.beat:Scheduler")
    for _ in range(2):
        eventually(lambda: scheduler.tick() == 0.0 and scheduler.leads)
        ticking = BackgroundCall(scheduler.tick)  # there is nothing to send for five minutes
        expire(zoo)
        assert RETRY <= ticking.result() <= MAX_WAIT
        assert not scheduler.leads
    eventually(lambda: scheduler.tick() == 0.0 and scheduler.leads)
    scheduler.close()
    zoo.assert_empty()


def scheduler_of(wrapped, **conf):
    app = Celery("beat", broker="memory://", set_as_current=False)
    app.conf.update(zklock_beat_scheduler=wrapped, **conf)
    return ZkScheduler(app)


class Prepared(Scheduler):
    """Its module prepares it by a signal, as that of RedBeat does."""

    is_prepared = False

    def tick(self, *args, **kwargs):
        assert self.is_prepared
        return super().tick(*args, **kwargs)


@pytest.fixture
def prepare():
    def prepare(sender, **_kwargs):
        sender.scheduler.is_prepared = True

    beat_init.connect(prepare)
    yield
    beat_init.disconnect(prepare)


def test_a_wrapped_scheduler_may_prepare_itself_by_beat_init(zoo, prepare):
    scheduler = scheduler_of(Prepared, beat_max_loop_interval=0.1)
    eventually(lambda: scheduler.tick() == 0.0 and scheduler.leads)
    assert scheduler.tick() == 0.0
    assert scheduler.leads
    scheduler.close()


class NotAnException(BaseException):
    """As some libraries raise for a timeout."""


def failing_once(name, remaining):
    def method(self, *args, **kwargs):
        if name in remaining:
            remaining.remove(name)
            raise NotAnException if name in ("tick", "close") else OSError("the database is away")
        return getattr(Scheduler, name)(self, *args, **kwargs)

    return method


def test_no_error_of_the_wrapped_scheduler_ends_beat(zoo, caplog):
    remaining = ["setup_schedule", "populate_heap", "tick", "reserve", "apply_entry", "should_sync", "sync", "close"]
    methods = {name: failing_once(name, remaining) for name in remaining}
    sent = []
    pauses = []
    methods["send_task"] = lambda _self, *args, **_kwargs: sent.append(args)
    methods["info"] = property(lambda _self: 1 / 0)
    schedule = {"often": {"task": "tick", "schedule": 0.001}}  # always due
    scheduler = scheduler_of(type("Failing", (Scheduler,), methods), beat_schedule=schedule)
    assert "Failing" in scheduler.info

    def is_sent():
        pauses.append(scheduler.tick())
        return not remaining and bool(sent)

    eventually(is_sent, 20)
    assert [pause for pause in pauses if pause][:4] == [RETRY, 2 * RETRY, 4 * RETRY, MAX_WAIT]
    remaining.append("close")
    scheduler.close()
    assert remaining == []
    zoo.assert_empty()
    lines = [record for record in caplog.records if "no longer leads" in record.message]
    assert [bool(record.exc_info) for record in lines][:3] == [True, True, False]  # two types of errors


def test_a_signal_in_the_wrapped_scheduler_ends_beat(zoo):
    """Celery ends beat by an exception that its signal handler raises."""

    def tick(self):
        raise SystemExit

    scheduler = scheduler_of(type("Signalled", (Scheduler,), {"tick": tick}))
    with pytest.raises(SystemExit):
        eventually(scheduler.tick)
    scheduler.close()
    zoo.assert_empty()


@pytest.mark.parametrize("name", ["django_zklock.contrib.celery.beat:ZkScheduler", "celery:Celery"])
def test_beat_refuses_to_wrap_itself_or_another_class(name):
    """Otherwise it would create itself without end, or fail each time it leads."""
    with pytest.raises(TypeError, match="zklock_beat_scheduler"):
        scheduler_of(name)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (None, ImproperlyConfigured),
        ({"LOCKS": {LOCK: {"path": "celery-beat/{schedule}", "limit": 2}}}, ValueError),  # several beats would lead
    ],
)
def test_beat_reports_invalid_settings_at_once(zoo, options, error):
    """A standby without settings would stand by for ever."""
    app = Celery("unset", set_as_current=False)
    settings = None if options is None else zoo.settings(**options)
    with override_settings(ZKLOCK=settings), pytest.raises(error):
        ZkScheduler(app)
