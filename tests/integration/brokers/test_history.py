"""A task that was sent again still knows what RabbitMQ has counted."""

import contextlib

import kombu
import pytest
from support.policytasks import POLICIES
from support.worker import Worker
from support.zoo import eventually

DEAD = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
LIMITED = {"x-queue-type": "quorum", "x-delivery-limit": 2, **DEAD}
PAUSE = {"x-message-ttl": 100, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "celery"}
"""Arguments of the queue `dead`, if it gives rejected messages back after a pause."""


@pytest.fixture
def queues(rabbitmq):
    """Declare and delete queues with arguments. No other test knows them."""
    with kombu.Connection(rabbitmq.conf["broker_url"]) as connection:
        names = ["celery", "other", "dead"]

        def declare(**arguments):
            for name, given in arguments.items():
                queue = kombu.Queue(name, queue_arguments=given)
                queue(connection.default_channel).declare()

        def forget():
            for name in names:
                kombu.Queue(name).bind(connection.default_channel).delete()

        forget()
        yield declare
        forget()


def waiting(rabbitmq, queue):
    with kombu.Connection(rabbitmq.conf["broker_url"]) as connection:
        channel = connection.default_channel
        return int(channel.queue_declare(queue, passive=True).message_count)


def wait_sent_again(worker, task_id):
    """Wait until a task meets a busy lock once more, and then again: it was sent again since."""
    before = worker.log.read_text().count(f"[{task_id}] retry")
    eventually(lambda: worker.log.read_text().count(f"[{task_id}] retry") > before + 1, 20)


@contextlib.contextmanager
def consuming(rabbitmq, zoo, home, arguments):
    """A worker on the queue `celery`, which has these arguments."""
    queue = {"celery": {"routing_key": "celery", "queue_arguments": arguments}}
    conf = {**rabbitmq.conf, "task_queues": queue}
    options = {"tasks": "support.historytasks", "options": ["--queues=celery"], "session_timeout": 4}
    with Worker(zoo, home, conf=conf, **options) as worker:
        yield worker


@pytest.mark.parametrize(
    "policy", [name if name == "retry" else pytest.param(name, marks=pytest.mark.chaos) for name in POLICIES]
)
def test_a_task_that_kills_its_process_each_time_is_dead_lettered(rabbitmq, queues, zoo, tmp_path, policy):
    """After as many runs as without a lock: the first one, and as many as `x-delivery-limit` allows after it."""
    queues(celery=LIMITED, dead={})
    book = tmp_path / "book"
    with consuming(rabbitmq, zoo, tmp_path, LIMITED) as worker:
        worker.send(f"history.poison.{policy}", "poison", str(book))
        eventually(lambda: waiting(rabbitmq, "dead") == 1, 120)
    assert len(book.read_text().splitlines()) == 3
    assert waiting(rabbitmq, "celery") == 0


def test_a_task_sees_that_its_worker_died(rabbitmq, queues, zoo, tmp_path):
    queues(celery=LIMITED, dead={})
    book = tmp_path / "book"
    with consuming(rabbitmq, zoo, tmp_path, LIMITED) as worker:
        worker.send("history.killed", "once", str(book), 1)
        eventually(lambda: "succeeded" in worker.log.read_text(), 40)
    assert book.read_text().splitlines() == ["0 False", "1 True"]


@pytest.mark.parametrize("kind", ["quorum", pytest.param("classic", marks=pytest.mark.chaos)])
def test_a_task_sees_how_often_it_was_dead_lettered(rabbitmq, queues, zoo, tmp_path, kind):
    """Though it was sent again between two rejections. So it can give up, and nothing goes round for ever."""
    arguments = {"x-queue-type": kind, **DEAD}
    queues(celery=arguments, dead=PAUSE)
    book = tmp_path / "book"
    with consuming(rabbitmq, zoo, tmp_path, arguments) as worker, contextlib.ExitStack() as stack:
        holds = [stack.enter_context(contextlib.ExitStack()) for _ in range(4)]
        for number, hold in enumerate(holds):
            hold.enter_context(zoo.hold_elsewhere(f"rejected-{number}"))
        result = worker.send("history.rejects", "rejected", str(book))
        for hold in holds:
            wait_sent_again(worker, result.id)
            hold.close()
        eventually(lambda: "succeeded" in worker.log.read_text(), 20)
    assert book.read_text().split() == ["0", "1", "2", "3"]
