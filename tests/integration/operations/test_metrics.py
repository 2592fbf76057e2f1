"""Metrics of holds, as Prometheus would collect them, on a real ZooKeeper."""

import contextlib
import math
import os
import re
import threading
import uuid
from functools import partial

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from support.deadlock import give_way
from support.faults import BackgroundCall, CallOnDemand, acquire_once, connected, proxied
from support.primitives import end_session
from support.proxy import MULTI
from support.work import assert_refused
from support.zoo import eventually, guid_of

from django_zklock import ReadWriteLock, zk_lock, zk_locked, zk_locks
from django_zklock.contrib.metrics import connect, disconnect
from django_zklock.core.protocol.registry import Registry
from django_zklock.core.queue.nodes import prefix
from django_zklock.exceptions import LockBusy, LockLost, LockLostInterrupt, ZooKeeperUnavailable
from django_zklock.operations import break_lock, request_release
from django_zklock.report import background, verdict
from django_zklock.signals import waiting_tasks_changed

NAME = "inventory/{sku}"


class Collected:
    def __init__(self):
        self.registry = CollectorRegistry()

    @property
    def text(self):
        return generate_latest(self.registry).decode()

    def __call__(self, name, lock=NAME, kind="lock", **labels):
        return self.registry.get_sample_value(f"zklock_{name}", labels or {"lock": lock, "kind": kind})

    def becomes(self, value, name, lock=NAME, kind="lock", **labels):
        eventually(lambda: self(name, lock, kind, **labels) == value, message=f"no {value} of {name} in {self.text}")


@pytest.fixture
def collected(zoo):
    collected = Collected()
    connect(collected.registry)
    yield collected
    disconnect(collected.registry)


def test_metrics_count_a_lock_while_it_is_held_and_after(collected):
    connect(collected.registry)  # again, which counts nothing twice
    for sku in ("4711", "4712"):
        with zk_lock(NAME, fields={"sku": sku}) as hold, zk_lock(NAME, fields={"sku": sku}):
            assert hold.template == NAME
            collected.becomes(1, "holds")
        collected.becomes(None, "holds")
    for name in ("acquired_total", "wait_seconds_count", "hold_seconds_count"):
        collected.becomes(2, name)
    assert 0 < (collected("hold_seconds_sum") or 0) < 60
    for name in ("lost_total", "aborts_swallowed_total", "contended_total", "unavailable_total", "held_long_total"):
        assert collected(name) == 0


def test_a_deadlock_is_counted_where_its_wait_is_ended(zoo, collected):
    with zk_lock(NAME, fields={"sku": "1"}):
        collected.becomes(0, "deadlocks_total")
    give_way(zoo, "stock/{sku}", NAME, fields={"sku": "1"})
    collected.becomes(1, "deadlocks_total")
    assert (collected("contended_total"), collected("deadlocks_total", "stock/{sku}")) == (0, 0)


def test_no_label_of_a_metric_has_a_key(collected):
    @zk_locked(NAME, timeout=0, on_conflict="raise")
    def sell(sku):
        with pytest.raises(LockBusy):
            BackgroundCall(lambda: sell(sku)).result()

    sell("lamp")
    collected.becomes(1, "hold_seconds_count")
    assert "lamp" not in collected.text
    assert set(re.findall(r' ?lock="(.*?)"', collected.text)) == {NAME}


def test_too_many_names_are_one_label(zoo, collected, caplog):
    """A project that puts keys into the names gets a bounded number of time series."""
    with zoo.configured(MAX_METRIC_LOCKS=2):
        for number in range(4):
            acquire_once(f"inventory/{number}")
        collected.becomes(2, "acquired_total", "(others)")
    assert caplog.text.count("MAX_METRIC_LOCKS") == 1
    collected.becomes(None, "holds", "(others)")
    assert collected("acquired_total", "inventory/1") == 1
    assert collected("acquired_total", "inventory/2") is None


@pytest.mark.parametrize("linger", [0, 5])
def test_a_lock_that_hangs_is_seen_before_it_ends(collected, linger):
    options = {"fields": {"sku": "1"}, "linger": linger}

    def wait():
        acquire_once(NAME, timeout=30, **options)

    with zk_lock(NAME, **options):
        waiter = BackgroundCall(wait)
        collected.becomes(1, "waiting")
        eventually(lambda: (collected("oldest_hold_seconds") or 0) > (collected("oldest_wait_seconds") or 99) > 0.2)
        assert collected("unavailable_total") == 0
    waiter.result()
    eventually(lambda: collected("waiting") is None)
    assert collected("oldest_wait_seconds") is None


def test_metrics_distinguish_readers_writers_and_permits(collected):
    rw = ReadWriteLock("k")
    with zk_locks(zk_lock("p", limit=3), rw.read()):
        for name, kind in (("p", "semaphore"), ("k", "read")):
            collected.becomes(1, "holds", name, kind)
    with rw.write():
        collected.becomes(1, "holds", "k", "write")
    for name, kind in (("p", "semaphore"), ("k", "read"), ("k", "write")):
        collected.becomes(1, "hold_seconds_count", name, kind)
        assert collected("acquired_total", name, kind) == 1


def test_a_loss_ends_a_hold_once(zoo, collected):
    lock = zk_lock("kept")
    kept = lock.acquire()
    assert kept
    thief = CallOnDemand(partial(end_session, zoo))
    with pytest.raises(LockLost), zk_lock("k") as hold:
        collected.becomes(1, "holds", "k")
        collected.becomes(1, "session_state", state="connected")
        thief.begin(zoo.client.exists(hold.path).ephemeralOwner)
        hold.wait_lost(20)
        eventually(lambda: False, 20)
    thief.result()
    assert kept.wait_lost(20)
    with pytest.raises(LockLost):
        lock.release()
    with zk_lock("after"):
        collected.becomes(1, "holds", "after")
    for name in ("k", "kept"):
        collected.becomes(1, "lost_total", name)
        collected.becomes(None, "holds", name)
        collected.becomes(1, "hold_seconds_count", name)
    assert collected("session_state", state="lost") == 0
    assert collected("session_state", state="connected") == 1


def test_a_lock_that_is_not_acquired_is_counted(zoo, collected):
    def tries():
        assert_refused(zk_lock("k", timeout=0), LockBusy)
        assert not zk_lock("k", kind="read").acquire(timeout=0.05)

    with zk_lock("k", kind="write"):
        BackgroundCall(tries).result()
    collected.becomes(1, "contended_total", "k")
    collected.becomes(1, "contended_total", "k", "read")
    assert collected("acquired_total", "k") is None
    assert collected("wait_seconds_count", "k") is None


def beat():
    session = connected()
    session.post(session.attached(Registry).heartbeat.beat)


def test_a_metric_measures_the_lease_remaining_at_a_heartbeat(collected):
    with zk_lock("k"):
        beat()
        eventually(lambda: collected.registry.get_sample_value("zklock_heartbeat_seconds_count"))
    margin = collected.registry.get_sample_value("zklock_lease_margin_ratio_sum")
    assert margin is not None
    assert 0 < margin / (collected.registry.get_sample_value("zklock_lease_margin_ratio_count") or 1) < 1
    assert collected.registry.get_sample_value("zklock_heartbeat_failures_total") == 0


def test_a_heartbeat_without_an_answer_and_the_break_are_counted(zoo, collected):
    with proxied(zoo, 20) as proxy, zk_lock("k", abort_on="lost"):
        proxy.kill_before_op(MULTI)
        beat()
        eventually(lambda: collected.registry.get_sample_value("zklock_heartbeat_failures_total") == 1)
        eventually(lambda: collected.registry.get_sample_value("zklock_suspensions_total") == 1)
    assert collected("lost_total", "k") == 0


def test_calls_that_zookeeper_did_not_answer_are_counted(zoo, collected):
    with zoo.configured(hosts="127.0.0.1:1"), pytest.raises(ZooKeeperUnavailable), zk_lock("k", timeout=0):
        pass
    collected.becomes(1, "unavailable_total", "k")
    assert collected("contended_total", "k") is None


def test_a_hold_that_takes_too_long_is_warned_of_lost_and_aborted(collected):
    with pytest.raises(LockLost), zk_lock("k", max_hold=0.4, warn_after=0.1):
        eventually(lambda: False, 20)
    collected.becomes(1, "abort_seconds_count", "k")
    collected.becomes(None, "holds", "k")
    assert (collected("lost_total", "k"), collected("held_long_total", "k")) == (1, 1)
    assert (collected("hold_seconds_sum", "k") or 0) >= 0.4
    assert collected("aborts_swallowed_total", "k") == 0
    with pytest.raises(LockLost), zk_lock("k", max_hold=0.5), contextlib.suppress(LockLostInterrupt):
        eventually(lambda: False, 20)
    collected.becomes(2, "abort_seconds_count", "k")
    assert collected("aborts_swallowed_total", "k") == 1


def test_release_requests_and_breaks_are_counted(zoo, collected):
    why = {"reason": "deploy", "by": "anna"}
    operator = CallOnDemand(lambda hold: break_lock("k", guid=guid_of(hold.path), token=hold.token, **why))
    with pytest.raises(LockLost), zk_lock("k") as hold:
        request_release("k", **why)
        hold.wait_release_requested(10)
        operator.begin(hold)
        eventually(lambda: False, 20)
    operator.result()
    collected.becomes(1, "lost_total", "k")
    collected.becomes(1, "release_requests_total", "k")
    eventually(lambda: collected.registry.get_sample_value("zklock_broken_total") == 1)


def end_looks():
    """Wait until no look writes what it has seen any more."""
    for thread in threading.enumerate():
        if thread.name == "zklock-outside":
            thread.join(30)


@pytest.mark.django_db(transaction=True)  # the look has a connection of its own
def test_incidents_are_a_metric_that_a_scrape_does_not_wait_for(zoo, collected, monkeypatch):
    monkeypatch.setattr(background, "EVERY", 0.0)
    assert collected("incidents", cause="orphan") is None, "nothing was looked at"
    acquire_once("another")
    path = zoo.client.create(f"{zoo.base}/k/{prefix(str(uuid.uuid4()))}", b"", sequence=True, makepath=True)
    collected.becomes(1, "incidents", cause="orphan")
    assert collected("incidents", cause="hung") == 0
    zoo.client.delete(path)
    collected.becomes(0, "incidents", cause="orphan")
    assert collected("incidents", cause="unknown") == 0
    monkeypatch.setattr(background, "EVERY", math.inf)
    end_looks()


def test_a_look_that_hangs_is_no_calm(zoo, collected, monkeypatch):
    """The database may not answer. A scrape shows no older result for long."""
    acquire_once("k")
    ended = threading.Event()
    monkeypatch.setattr(background, "EVERY", 0.0)
    monkeypatch.setattr(background, "HANGS", 0.0)
    monkeypatch.setattr(verdict, "look", lambda *_, **__: ended.wait(60))
    background.causes()
    collected.becomes(1, "incidents", cause="unknown")
    ended.set()
    end_looks()


def test_a_forked_child_has_no_hold_of_its_parent(collected):
    with zk_lock("k"):
        collected.becomes(1, "holds", "k")
        child = os.fork()
        if child == 0:
            is_empty = collected("holds", "k") is None and collected("session_state", state="connected") is None
            os._exit(0 if is_empty else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert collected("holds", "k") == 1


SEVERAL = """
import os, struct, traceback
from prometheus_client import CollectorRegistry, multiprocess
from django_zklock.contrib.metrics import connect
from django_zklock.report import past
from support.zoo import eventually

past.source = None  # this process has no tables
connect()

def value(name, **labels):
    registry = CollectorRegistry()
    multiprocess.MultiProcessCollector(registry)
    try:
        return registry.get_sample_value("zklock_" + name, labels)
    except struct.error:
        return None  # the library met a file that another process had just begun

def becomes(expected, name, **labels):
    eventually(lambda: value(name, **labels) == expected, 20, f"{value(name, **labels)} is not {expected} of {name}")

def in_child(work):
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
    return child
"""

ADDED_UP = """
read = dict(lock="k", kind="read")

def join():
    with zk_lock("k", kind="read"):
        becomes(2, "session_state", state="connected")
        becomes(2, "acquired_total", **read)  # counted on a thread, which ends with the child

with zk_lock("k", kind="read"):
    becomes(1, "session_state", state="connected")
    in_child(join)
    becomes(2, "acquired_total", **read)
print("added up")
"""


def test_the_counters_and_connections_of_several_processes_add_up(zoo, tmp_path):
    assert zoo.output(SEVERAL + ADDED_UP, PROMETHEUS_MULTIPROC_DIR=str(tmp_path)) == ["added up"]


SUCCEEDED = """
from django_zklock.report import past

past.source = None  # this process has no tables

def look():
    with zk_lock("k"):
        becomes(0, "incidents", cause="hung")

multiprocess.mark_process_dead(in_child(look))
assert value("incidents", cause="hung") is None
look()
print("taken over")
"""


def test_one_of_several_processes_tells_the_incidents_and_another_takes_over(zoo, tmp_path):
    assert zoo.output(SEVERAL + SUCCEEDED, PROMETHEUS_MULTIPROC_DIR=str(tmp_path)) == ["taken over"]


WITHOUT = """
import sys
sys.modules.update(dict.fromkeys(("prometheus_client", "opentelemetry", "opentelemetry.trace")))
"""
ADDED = """
from django.apps import AppConfig
from django.core.exceptions import ImproperlyConfigured

with zk_lock("k") as hold:
    print(hold.template)
for app in ("metrics", "otel"):
    try:
        AppConfig.create(f"django_zklock.contrib.{app}").ready()
    except ImproperlyConfigured as error:
        print(error)
"""


def test_without_the_libraries_locks_work_and_their_apps_say_what_to_install(zoo):
    """As Django is set up, so that nobody misses metrics or spans later."""
    to_install = {"metrics": "prometheus_client", "otel": "opentelemetry-api"}
    assert zoo.output(ADDED, first=WITHOUT) == ["k"] + [
        f'django_zklock.contrib.{app} needs {name}, which is not installed: pip install "django-zklock[{app}]".'
        for app, name in to_install.items()
    ]


def test_the_waiting_tasks_of_a_celery_worker_are_counted(collected):
    for waiting in (3, 0):
        waiting_tasks_changed.send(None, waiting=waiting)
        assert collected.registry.get_sample_value("zklock_waiting_tasks") == waiting
