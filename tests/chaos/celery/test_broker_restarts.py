"""The broker restarts, three times in a row, while tasks wait: workers survive, and every task ends."""

import contextlib

import pytest
from support.brokers import Broker, RabbitMQ, Redis
from support.worker import Worker
from support.zoo import eventually

pytestmark = pytest.mark.timeout(300)

TASKS = 200


@pytest.fixture(scope="module")
def redis():
    """A Redis of its own, as others do not expect theirs to restart."""
    with Redis() as server:
        yield server


@pytest.mark.parametrize(
    ("name", "restart"),
    [("redis", Broker.restart), ("rabbitmq", RabbitMQ.restart_app), ("rabbitmq", Broker.restart)],
    ids=["Redis", "RabbitMQ, stop_app", "RabbitMQ, killed"],
)
def test_every_waiting_task_ends_after_a_broker_restart(zoo, tmp_path, request, name, restart):
    broker = request.getfixturevalue(name)
    broker.clear()
    # Without confirmations, RabbitMQ may not have kept the last messages when it is killed.
    conf = {"broker_url": broker.conf["broker_url"], "broker_transport_options": {"confirm_publish": True}}
    with contextlib.ExitStack() as stack:
        workers = [stack.enter_context(Worker(zoo, tmp_path, conf=conf)) for _ in range(2)]
        for worker in workers:
            stack.enter_context(worker.log_shown())

        def received():
            return sum(worker.log.read_text().count("] received") for worker in workers)

        book, client = tmp_path / "book", workers[0]
        with zoo.hold_elsewhere("restart"):
            results = [client.send("waiting.note", "restart", str(book), str(number)) for number in range(TASKS)]
            eventually(lambda: received() == TASKS, 30, "not all were taken")
            for times in (1, 2, 3):
                restart(broker)
                eventually(lambda times=times: received() >= (1 + times) * TASKS, 60, received)
        for result in results:
            client.get(result, 60)
        assert sorted(int(number) for number in book.read_text().split()) == list(range(TASKS))
        for worker in workers:
            assert worker.stop() == 0
