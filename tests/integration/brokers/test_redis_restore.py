"""Messages that were not acknowledged when Redis was lost are delivered again at once."""

import gc
import warnings

import celery
import kombu
import pytest
from celery import Celery
from support.brokers import Redis
from support.worker import Worker
from support.zoo import eventually

from django_zklock.contrib.celery.redis_restore import RedisRestore

QUEUE = "celery"


class Consumer:
    """Has and loses connections as Celery's consumer does, with the step under test."""

    def __init__(self, redis, **options):
        self._redis = redis
        self._options = options
        self.app = Celery(set_as_current=False)
        self._step = RedisRestore(self)
        self.connect()
        self.restore()

    def connect(self):
        self.connection = kombu.Connection(self._redis.conf["broker_url"], transport_options=self._options)
        self.queue = kombu.Queue(QUEUE, channel=self.connection.default_channel)
        self.queue.queue_declare()

    def restore(self):
        self._step.start(self)

    def lose(self):
        self.connection.collect()
        self.connection.close()

    def send(self, *payloads):
        with self.connection.Producer() as producer:
            for payload in payloads:
                producer.publish(payload, routing_key=QUEUE)

    def receive(self):
        return list(iter(self.queue.get, None))


@pytest.fixture(scope="module")
def redis():
    """A Redis of its own, as others do not expect theirs to restart."""
    with Redis() as server:
        yield server
    with warnings.catch_warnings():  # a connect that Redis does not answer leaves its socket to the garbage collector
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.fixture
def consumer(redis):
    redis.clear()
    consumer = Consumer(redis)
    yield consumer
    consumer.connection.close()


def test_unacknowledged_messages_go_back_to_the_front_in_their_order(consumer, redis):
    consumer.send(0, 1, 2, 3, 4)
    for message in consumer.receive():
        if message.payload in (1, 3):
            message.ack()
    consumer.send("later")
    with redis.down():
        consumer.lose()
    assert redis.count_unacked() == 3
    consumer.connect()
    consumer.restore()
    assert redis.count_unacked() == 0
    assert [message.payload for message in consumer.receive()] == [0, 2, 4, "later"]


def test_messages_stay_known_until_redis_takes_them(consumer, redis, caplog):
    consumer.send(0, 1, 2)
    consumer.receive()
    consumer.lose()
    consumer.connect()
    with redis.down():
        consumer.restore()
        consumer.lose()
    assert "3 messages stay unacknowledged until the next connection" in caplog.text
    consumer.connect()
    consumer.restore()
    assert [message.payload for message in consumer.receive()] == [0, 1, 2]


def test_messages_are_not_restored_after_a_long_outage(redis):
    """Another worker may have restored and taken them: a second restore would deliver them twice."""
    redis.clear()
    consumer = Consumer(redis, visibility_timeout=0)
    consumer.send(0)
    consumer.receive()
    consumer.lose()
    consumer.connect()
    consumer.restore()
    assert redis.count_unacked() == 1
    consumer.connection.close()


def test_a_message_of_a_lost_connection_is_acknowledged_after_the_reconnect(consumer, redis):
    consumer.send("done", "refused")
    done, refused = consumer.receive()
    consumer.lose()
    consumer.connect()
    consumer.restore()
    assert len(consumer.receive()) == 2
    done.ack()
    refused.reject(requeue=True)
    assert redis.count_unacked() == 0
    assert [message.payload for message in consumer.receive()] == ["refused"]


@pytest.mark.parametrize("task", ["waiting.wait", pytest.param("waiting.late", marks=pytest.mark.chaos)])
def test_tasks_run_to_their_end_though_redis_restarts(zoo, redis, tmp_path, task):
    redis.clear()
    conf = {"broker_url": redis.conf["broker_url"]}  # results elsewhere: Celery before 5.7 may wait for them for ever
    with Worker(zoo, tmp_path, conf=conf) as worker:
        gate = worker.gate()
        results = [worker.send(task, "restart", "linger", str(gate)) for _ in range(20)]
        gate.wait_at_work()
        zoo.wait_contenders("restart", 20)
        (gate.path / "entered").unlink()
        redis.restart()
        eventually(lambda: worker.log.read_text().count("] received") == 39, 20, "not all were taken again")
        assert not (gate.path / "entered").exists(), "the task that is at work was started again"
        gate.open()
        for result in results:
            worker.get(result)
        if celery.VERSION >= (5, 6):  # before, Celery forgets to acknowledge a task that was at work, also without us
            eventually(lambda: not redis.tags(), message="a message was not acknowledged")
        assert worker.stop() == 0
