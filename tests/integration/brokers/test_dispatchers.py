"""Workers whose tasks wait in the main process, from their start to their end, on Redis and RabbitMQ."""

import signal
import time
import uuid

import psutil
import pytest
from support.brokers import Redis
from support.worker import Worker
from support.zoo import Zoo, eventually

from django_zklock.core import clock
from django_zklock.exceptions import LockLost


@pytest.fixture(scope="module")
def narrow(redis_worker, tmp_path_factory):
    """A worker with one process, which gets many messages ahead. Its locks are those of the shared worker."""
    home, how = tmp_path_factory.mktemp("narrow"), {"worker_prefetch_multiplier": 16}
    with Redis() as redis, Worker(redis_worker.zoo, home, concurrency=1, conf={**redis.conf, **how}) as worker:
        yield worker


@pytest.fixture(scope="module")
def narrow_threads(single, tmp_path_factory):
    """A worker with one thread, which gets many messages ahead. Its dispatcher has a thread of its own, too."""
    home, conf = tmp_path_factory.mktemp("narrow"), {"worker_prefetch_multiplier": 16}
    with Zoo(single.hosts, single) as zoo, Worker(zoo, home, pool="threads", concurrency=1, conf=conf) as worker:
        yield worker


def test_a_warm_shutdown_gives_waiting_messages_back(zoo, redis, tmp_path):
    redis.clear()
    with Worker(zoo, tmp_path, conf=redis.conf) as worker:
        worker.run("ping")
        assert open_connections(worker, zoo) <= {worker.process.pid}  # it has unique tasks
        (first, gate), (other, other_gate) = worker.begin("waiting.wait", "warm"), worker.begin("waiting.wait", "other")
        assert open_connections(worker, zoo) == {worker.process.pid}
        worker.finish([(other, other_gate)])
        later = [worker.send("waiting.wait", "warm") for _ in range(3)]
        zoo.wait_contenders("warm", 4)
        worker.process.send_signal(signal.SIGTERM)
        zoo.wait_contenders("warm", 1)
        gate.open()
        worker.process.wait(30)
        zoo.wait_contenders("warm", 0, timeout=1)
        with Worker(zoo, tmp_path, conf=redis.conf) as second:
            for result in (first, *later):
                second.get(result)


EMBEDDED = """
import os, sys, threading, time
from celery import Celery
from celery.contrib.testing.worker import start_worker
from django_zklock.contrib.celery.dispatch.shared_grants import memories

apps = [Celery(name, broker="memory://", backend="cache+memory://") for name in ("first", "second")]
works = []
for app in apps:
    app.conf.update(task_default_queue=app.main, broker_transport_options={"polling_interval": 0.02})
    @app.task(name=app.main, bind=True)
    @zk_locked(f"of-{app.main}")
    def work(self):
        time.sleep(2)  # longer than a lease
        return [name for name in self.request.headers or {} if name == "zklock_conflicts"]  # if it was sent again
    works.append(work)

def worker(app):
    return start_worker(app, pool=sys.argv[1], perform_ping_check=False, shutdown_timeout=30)

def left_over():
    own = [thread for thread in threading.enumerate() if thread.name in ("zklock-pool-grants", "zklock-proxy")]
    return own or memories

with zk_lock("of-the-process") as hold:
    with worker(apps[0]):
        print(works[0].delay().get(timeout=20))
    with worker(apps[1]) as last:
        with worker(apps[0]):
            for result in [work.delay() for work in works]:
                print(result.get(timeout=20))
        last.stop()
    until = time.monotonic() + 10
    while left_over() and time.monotonic() < until:
        time.sleep(0.01)
    print(left_over(), hold.lost)
sys.stdout.flush()
os._exit(0)
"""


@pytest.mark.parametrize("pool", ["threads", pytest.param("solo", marks=pytest.mark.chaos)])
def test_workers_in_the_process_of_a_test_leave_nothing_to_each_other(zoo, pool):
    with zoo.running(EMBEDDED, pool) as process:
        said, problems = process.communicate(timeout=120)
    assert said.splitlines() == ["[]"] * 3 + ["{} False"], problems


def open_connections(worker, zoo):
    ports = {int(host.rpartition(":")[2]) for host in zoo.all_hosts.split(",")}
    return {
        pid
        for pid in worker.group()
        for connection in psutil.Process(pid).net_connections("tcp")
        if connection.raddr and connection.raddr.port in ports
    }


def test_a_worker_without_a_free_slot_leaves_the_lock_to_another(narrow, worker):
    with worker.zoo.hold_elsewhere("shared"):
        first = narrow.send("waiting.wait", "shared")
        worker.zoo.wait_contenders("shared", 2)
        long, gate = narrow.begin("waiting.wait", "long")
        second = worker.send("waiting.wait", "shared")
        worker.zoo.wait_contenders("shared", 3)
    assert worker.get(second)["headers"] == {}
    assert not first.ready()
    gate.open()
    assert narrow.get(first)["headers"] == {}
    narrow.get(long)


def test_messages_get_slots_in_the_order_in_which_they_came(narrow):
    book = narrow.home / "book"
    first, gate = narrow.begin("waiting.wait", "first")
    names = ["waiting.note", "waiting.plain_note"] * 5
    results = [narrow.send(name, f"key-{number}", str(book), str(number)) for number, name in enumerate(names)]
    gate.open()
    for result in (first, *results):
        narrow.get(result)
    assert book.read_text().split() == [str(number) for number in range(len(names))]


def test_an_error_outside_a_task_frees_its_slot(narrow_threads):
    """Celery raises it for a bad message, and calls nothing back. The worker goes on with tasks that need a lock."""
    amqp = narrow_threads.app.amqp
    message = amqp.create_task_message(uuid.uuid4().hex, "ping")._replace(body=([], {}, ["no", "mapping"]))
    with narrow_threads.app.producer_or_acquire() as producer:
        amqp.send_task_message(producer, "ping", message, routing_key="celery")
    narrow_threads.run("waiting.wait", "after")


@pytest.mark.chaos
def test_tasks_without_a_lock_run_while_zookeeper_is_down(zoo, redis, tmp_path):
    redis.clear()
    conf = {**redis.conf, "worker_prefetch_multiplier": 4}
    with Worker(zoo, tmp_path, conf=conf) as worker:
        worker.run("waiting.wait", "before")
        (server,) = zoo.ensemble.servers
        server.pause()
        try:
            locked, unlocked = [], []
            for number in range(60):
                locked.append(worker.send("waiting.wait", f"down-{number}"))
                unlocked.append(worker.send("ping"))
            began = clock.now()
            for result in unlocked:
                worker.get(result)
            assert clock.now() - began < 5
        finally:
            server.resume()
        for result in locked:
            worker.get(result)


@pytest.mark.chaos
def test_ending_processes_get_no_grants(zoo, redis, tmp_path):
    """Celery still sends tasks to a process that has run its last one. A task with the lock would wait there."""
    redis.clear()
    with Worker(zoo, tmp_path, conf=redis.conf, concurrency=2, options=["--max-tasks-per-child=1"]) as worker:
        began = clock.now()
        for result in [worker.send("waiting.wait", "ending") for _ in range(20)]:
            worker.get(result, 90)
        spent = clock.now() - began
        assert spent < 15  # 4 s on an idle machine; 30 s if such processes get tasks


def test_messages_that_may_not_wait_any_more_are_sent_again(zoo, redis, tmp_path):
    """Those beyond `zklock_max_waiting`, and those that have waited for `zklock_longest_wait`. They run in the end."""
    redis.clear()
    with Worker(zoo, tmp_path, conf={**redis.conf, "zklock_max_waiting": 3, "zklock_longest_wait": 4}) as worker:
        with zoo.hold_elsewhere("full"):
            waiting = [worker.send("waiting.wait", "full"), worker.send("waiting.wait", "full", countdown=3.5)]
            zoo.wait_contenders("full", 2)
            eventually(lambda: waiting[0].state == "RETRY")
            began = time.monotonic()
            eventually(lambda: waiting[1].state == "RETRY")
            assert time.monotonic() - began < 3
        with zoo.hold_elsewhere("more"):
            more = [worker.send("waiting.wait", "more") for _ in range(5)]
            zoo.wait_contenders("more", 4)
            eventually(lambda: [result.state for result in more].count("RETRY") >= 2)
        for result in (*waiting, *more):
            worker.get(result, 40)


def test_work_is_aborted_before_another_gets_the_lock_of_a_stopped_worker(worker):
    """The main process is stopped; the pool process sees the end of the lease by the clock."""
    zoo, marks = worker.zoo, worker.home / "marks"
    result = worker.send("waiting.mark", "stopped", str(marks))
    eventually(marks.exists)
    worker.process.send_signal(signal.SIGSTOP)
    zoo.wait_contenders("stopped", 0, timeout=20)
    released = time.monotonic()
    worker.process.send_signal(signal.SIGCONT)
    assert isinstance(worker.wait_failed(result), LockLost)
    assert float(marks.read_text()) < released
