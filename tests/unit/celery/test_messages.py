"""A message names the queue by which it came; counts that anybody may have written are bounded."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from kombu import Exchange, Queue, binding
from kombu.common import Broadcast
from kombu.transport.native_delayed_delivery import calculate_routing_key

from django_zklock.contrib.celery import messages

TOPIC, DIRECT = Exchange("topic", type="topic"), Exchange("direct", type="direct")
FANS: Any = [binding(Exchange("fan", type="fanout"))]  # kombu takes lists, its stubs do not
QUEUES = [
    Queue("celery", TOPIC, routing_key="celery"),
    Queue("orders", TOPIC, routing_key="order.#"),
    Queue("paid", TOPIC, routing_key="order.*.paid"),
    Queue("one", DIRECT, routing_key="one"),
    Queue("left", DIRECT, routing_key="both"),
    Queue("right", DIRECT, routing_key="both"),
    Queue("bound", FANS),
    Broadcast("all"),
]
DELAYED = "celery_delayed_0"


@pytest.fixture(scope="module")
def app() -> Celery:
    return Celery("queues", set_as_current=False, task_queues=QUEUES)


@pytest.mark.parametrize(
    ("exchange", "key", "queue"),
    [
        ("", "named", "named"),
        ("topic", "celery", "celery"),
        ("topic", "order.7.open", ""),
        ("topic", "unknown", ""),
        ("direct", "one", "one"),
        ("unknown", "one", ""),
        (DELAYED, calculate_routing_key(1, "celery"), "celery"),
        (DELAYED, calculate_routing_key(100_000, "one"), "one"),
    ],
)
def test_the_queue_of_a_message_is_found(app: Celery, exchange: str, key: str, queue: str) -> None:
    """Also after a native delay, which puts another exchange and key into the message."""
    assert messages._queue_of(app, {"exchange": exchange, "routing_key": key}) == queue


@pytest.mark.parametrize(
    ("exchange", "key"),
    [
        ("all", ""),
        ("all", "any"),
        ("fan", ""),
        ("topic", "order.7.paid"),
        ("direct", "both"),
        (DELAYED, calculate_routing_key(3, "both")),
    ],
)
def test_a_message_to_several_queues_is_not_sent_again(app: Celery, exchange: str, key: str) -> None:
    with pytest.raises(ValueError, match="several queues"):
        messages._queue_of(app, {"exchange": exchange, "routing_key": key})


@pytest.mark.parametrize("value", [True, -1, -(10**400), 10**400, 1.5, "3", None, [1]])
def test_a_count_in_a_header_is_bounded(value: Any) -> None:
    """The next pause can be computed from whatever somebody has written there."""
    times = messages.count(SimpleNamespace(headers={"count": value}), "count")
    assert 0 <= times <= 1_000_000
    assert 0 < messages.delay_before(times + 1) <= messages.LONGEST_DELAY
