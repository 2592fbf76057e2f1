"""Read what a message tells: the queue by which it came, and headers that anybody may have written."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from celery.app.trace import trace_task
from kombu import Exchange, Queue
from kombu.common import Broadcast

from django_zklock.contrib.celery import messages
from django_zklock.exceptions import ZkLockError

TOPIC, DIRECT = Exchange("m-topic", type="topic"), Exchange("m-direct", type="direct")
QUEUES = [
    Queue("m-celery", TOPIC, routing_key="celery"),
    Queue("m-orders", TOPIC, routing_key="order.#"),
    Queue("m-paid", TOPIC, routing_key="order.*.paid"),
    Queue("m-one", DIRECT, routing_key="one"),
    Queue("m-left", DIRECT, routing_key="both"),
    Queue("m-right", DIRECT, routing_key="both"),
    Broadcast("m-all"),
]


@pytest.fixture
def app() -> Iterator[Celery]:
    app = Celery(broker="memory://", backend="cache+memory://", set_as_current=False)
    yield app
    app.control.purge()
    app.close()


@pytest.mark.parametrize(
    ("exchange", "key", "queue"),
    [
        ("", "named", "named"),
        ("m-topic", "celery", "m-celery"),
        ("m-topic", "order.7.open", "m-orders"),
        ("m-direct", "one", "m-one"),
        # More than one worker would get what is sent so, or nobody.
        ("m-topic", "order.7.paid", ""),
        ("m-direct", "both", ""),
        ("m-all", "", ""),
        ("m-topic", "unknown", ""),
        ("unknown", "one", ""),
    ],
)
def test_the_queue_of_a_message_is_found(app: Celery, exchange: str, key: str, queue: str) -> None:
    """Only if it is the only one."""
    with app.connection_for_write() as connection:
        channel = connection.channel()
        for declared in QUEUES:
            declared.bind(channel).declare()
        delivered = SimpleNamespace(
            channel=channel, delivery_info={"exchange": exchange, "routing_key": key}, headers={}
        )
        assert messages._queue_of(None, delivered) == queue


def test_a_task_is_sent_again_straight_to_its_queue(app: Celery) -> None:
    """Neither its own routes nor the way of the first message count: other workers could get it, or nobody."""
    app.conf.task_routes = {"routed": {"queue": "other", "exchange": "elsewhere", "routing_key": "nowhere"}}

    @app.task(name="routed", shared=False)
    def routed() -> None:
        messages.send_again(routed, messages.CONFLICTS_HEADER, ZkLockError("busy"))

    first = {"exchange": "elsewhere", "routing_key": "nowhere", messages.QUEUE_KEY: "celery", "priority": 3}
    of_delivery: dict[str, Any] = {"x-death": [{"count": 1}], "x-first-death-queue": "before", "CC": ["more"]}
    request = {"id": "one", "delivery_info": first, "headers": {**of_delivery, "mine": 1}}
    trace_task(routed, "one", (), {}, request=request, app=app)
    with app.connection_for_read() as connection, connection.SimpleQueue("celery") as queue:
        message = queue.get(block=False)
        message.ack()
    read: dict[str, Any] = {**message.headers, **message.properties, **message.delivery_info}
    assert {"exchange": "", "priority": 3, "mine": 1, messages.CONFLICTS_HEADER: 1}.items() <= read.items()
    assert of_delivery.keys().isdisjoint(message.headers)
    assert 0 < (datetime.fromisoformat(message.headers["eta"]) - app.now()).total_seconds() < messages.FIRST_DELAY


@pytest.mark.parametrize("value", [True, -1, -(10**400), 10**400, 1.5, "3", None, [1]])
def test_a_count_in_a_header_is_bounded(app: Celery, value: Any) -> None:
    """The next pause can be computed from whatever somebody has written there."""
    times = messages.count(SimpleNamespace(headers={"count": value}), "count")
    assert 0 <= times <= 1_000_000
    assert 0 < messages.delay_before(SimpleNamespace(app=app), times + 1) <= messages.LONGEST_DELAY  # type: ignore[arg-type]
