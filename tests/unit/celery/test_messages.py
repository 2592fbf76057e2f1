"""A message: its queue, headers that anybody may have written, and other copies of it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from queue import Empty
from types import SimpleNamespace
from typing import Any, NoReturn

import celery
import pytest
from celery import Celery, states
from celery.app.trace import trace_task
from kombu import Exchange, Queue
from kombu.common import Broadcast

from django_zklock import Lock, zk_locked
from django_zklock.contrib.celery import context, messages
from django_zklock.exceptions import LockBusy, ZkLockError

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
    app = Celery(broker=f"memory://{__name__}", backend="cache+memory://", set_as_current=False)
    app.control.purge()  # all applications of this process share the memory
    yield app
    app.control.purge()
    app.backend.forget("one")
    app.close()


def received(app: Celery) -> Any:
    with app.connection_for_read() as connection, connection.SimpleQueue(app.conf.task_default_queue) as queue:
        message = queue.get(block=False)
        message.ack()
    return message


def delivered(channel: Any, exchange: str, key: str, **info: str) -> Any:
    return SimpleNamespace(
        channel=channel, delivery_info={"exchange": exchange, "routing_key": key, **info}, headers={}
    )


@pytest.mark.parametrize(
    ("exchange", "key", "queue"),
    [
        ("", "m-one", "m-one"),
        ("m-topic", "celery", "m-celery"),
        ("m-topic", "order.7.open", "m-orders"),
        ("m-direct", "one", "m-one"),
        # Another worker has the other queue.
        ("m-direct", "both", "m-left"),
        # This worker has both queues, or it has no queue that outlives it.
        ("m-topic", "order.7.paid", ""),
        ("m-all", "", ""),
        ("m-topic", "unknown", ""),
        ("unknown", "one", ""),
    ],
)
def test_the_queue_of_a_message_is_found(app: Celery, exchange: str, key: str, queue: str) -> None:
    with app.connection_for_write() as connection:
        channel: Any = connection.channel()
        for declared in QUEUES:
            declared.bind(channel).declare()
        channel.deadletter_queue = "m-dead"  # kombu puts there what has no queue
        tasks = app.amqp.TaskConsumer(channel, queues=[queue for queue in QUEUES if queue.name != "m-right"])
        message = delivered(channel, exchange, key)
        assert messages._queue_of(SimpleNamespace(task_consumer=tasks), message) == queue


def consuming(*queues: Queue) -> Any:
    return SimpleNamespace(task_consumer=SimpleNamespace(queues=queues))


@pytest.mark.parametrize(
    ("exchange", "key", "queue"), [("", "m-one", "m-one"), ("", "other", ""), ("any", "m-one", "")]
)
@pytest.mark.parametrize("version", ["pyamqp", "virtual"])
def test_another_version_of_kombu_need_not_tell_the_queue(version: str, exchange: str, key: str, queue: str) -> None:
    """Its private attributes may be others. Then only a message without an exchange tells its queue."""
    channel = SimpleNamespace(typeof=lambda exchange: SimpleNamespace(type="direct")) if version == "virtual" else None
    message = delivered(channel, exchange, key, consumer_tag="None1")
    assert messages._queue_of(consuming(*QUEUES), message) == queue


NO_TEXTS = [None, [], {}, 0, True, ["m-one"], {"m-one": 1}]


@pytest.mark.parametrize("info", [{}, *[{"exchange": other} for other in NO_TEXTS], {"exchange": ""}])
@pytest.mark.parametrize("key", ["m-right", "admin", "m-on", "", *NO_TEXTS])
def test_a_sender_cannot_name_a_queue_that_the_worker_does_not_consume_from(
    app: Celery, info: dict[str, Any], key: object
) -> None:
    """With Redis, SQS and other virtual transports, `delivery_info` is a part of the message."""
    with app.connection_for_write() as connection:
        channel: Any = connection.channel()
        for declared in QUEUES:
            declared.bind(channel).declare()
        message = SimpleNamespace(channel=channel, delivery_info={**info, "routing_key": key}, headers={})
        consumed = [queue for queue in QUEUES if queue.name != "m-right"]
        assert messages._queue_of(consuming(*consumed), message) == ""


def test_a_task_of_an_unknown_queue_is_not_sent_again(app: Celery) -> None:
    """It waits in its slot, whatever its sender has written about its way."""

    @app.task(name="unknown", shared=False)
    def unknown() -> None:
        messages.send_again(unknown, messages.CONFLICTS_HEADER, ZkLockError("busy"))

    for info in ({"routing_key": "celery"}, {"exchange": "", "routing_key": "celery"}, {messages.QUEUE_KEY: ""}, {}):
        trace_task(unknown, "sent", (), {}, request={"id": "sent", "delivery_info": info, "headers": {}}, app=app)
        with pytest.raises(Empty):
            received(app)


@pytest.mark.parametrize("protocol", [1, 2])
def test_a_task_is_sent_again_straight_to_its_queue(app: Celery, protocol: int) -> None:
    """Neither its own routes nor the way of the first message count: other workers could get it, or nobody."""
    app.conf.task_protocol = protocol
    app.conf.task_routes = {"routed": {"queue": "other", "exchange": "elsewhere", "routing_key": "nowhere"}}

    @app.task(name="routed", shared=False)
    def routed() -> None:
        messages.send_again(routed, messages.CONFLICTS_HEADER, ZkLockError("busy"))

    first = {"exchange": "elsewhere", "routing_key": "nowhere", messages.QUEUE_KEY: "celery", "priority": 3}
    of_delivery: dict[str, Any] = {"x-death": [{"count": 1}], "x-first-death-queue": "before", "CC": ["more"]}
    request = {
        "id": "sent",
        "delivery_info": first,
        "headers": {**of_delivery, "mine": 1, messages.CONFLICTS_HEADER: 2},
    }
    began = app.now()
    trace_task(routed, "sent", (), {}, request=request, app=app)
    took = (app.now() - began).total_seconds()
    message = received(app)
    read: dict[str, Any] = {**message.headers, **message.properties, **message.delivery_info}
    assert {"exchange": "", "priority": 3, "mine": 1, messages.CONFLICTS_HEADER: 3}.items() <= read.items()
    assert of_delivery.keys().isdisjoint(message.headers)
    has_eta = message.headers if protocol == 2 else message.payload
    delay = (datetime.fromisoformat(has_eta["eta"]) - began).total_seconds()
    assert 2 * messages.FIRST_DELAY <= delay < took + 4 * messages.FIRST_DELAY, "it grows"


@pytest.mark.parametrize("value", [True, -1, -(10**400), 10**400, 1.5, "3", None, [1]])
def test_a_count_in_a_header_is_bounded(app: Celery, value: Any) -> None:
    """The next pause can be computed from whatever somebody has written there."""
    times = messages.count(SimpleNamespace(headers={"count": value}), "count")
    assert 0 <= times <= 1_000_000
    assert 0 < messages.delay_before(SimpleNamespace(app=app), times + 1) <= messages.LONGEST_DELAY  # type: ignore[arg-type]


@pytest.mark.parametrize("number", [1, 2, 3])
def test_the_delay_grows_and_is_partly_random(app: Celery, number: int) -> None:
    """So tasks that met once do not meet again."""
    paused = {messages.delay_before(SimpleNamespace(app=app), number) for _ in range(50)}  # type: ignore[arg-type]
    longest = messages.FIRST_DELAY * 2 ** (number - 1)
    assert all(longest * 3 / 4 <= pause <= longest for pause in paused)
    assert max(paused) - min(paused) > longest / 8


def test_the_queue_of_a_task_without_a_lock_is_not_looked_up(app: Celery) -> None:
    """It is never sent again, and the look-up may be a request to the broker, for each message."""

    @app.task(shared=False)
    def plain() -> None: ...

    @app.task(shared=False)
    @zk_locked("k")
    def locked() -> None: ...

    for task, queue in ((plain, None), (locked, "named")):
        message = delivered(None, "", "named", consumer_tag="None1")
        request = SimpleNamespace(task=task, request_dict={"id": "1"}, message=message, delivery_info={})
        messages.record_received(sender=consuming(Queue("named")), request=request)
        assert request.delivery_info.get(messages.QUEUE_KEY) == queue


@pytest.mark.parametrize("headers", [5, "x", True, [], [["a", 1]], None])
def test_headers_that_are_none_are_dropped(headers: object) -> None:
    """A sender may put anything there. The process that runs the task gets what the main process has left."""
    message = SimpleNamespace(delivery_info={}, channel=None, headers={})
    request = SimpleNamespace(
        task=None, request_dict={"id": "1", "headers": headers}, message=message, delivery_info={}
    )
    assert messages.headers_of(request)["id"] == "1"
    messages.record_received(sender=None, request=request)
    assert request.request_dict == {"id": "1", "headers": None}
    assert messages.received_at(request) > 0


REDELIVERED = {"id": "one", "delivery_info": {"redelivered": True, messages.QUEUE_KEY: "celery"}, "headers": {}}


@pytest.mark.skipif(celery.VERSION < (5, 7), reason="this Celery stores RETRY in any case")
@pytest.mark.parametrize("header", [messages.COPIES_HEADER, messages.CONFLICTS_HEADER])
def test_a_copy_that_is_sent_again_stores_nothing(app: Celery, header: str) -> None:
    """Celery looks for a result before it writes RETRY. The other copy, or a holder, may store one between the two."""

    @app.task(name="busy", shared=False)
    def busy() -> None:
        messages.send_again(busy, header, ZkLockError("busy"))

    trace_task(busy, "one", (), {}, request=REDELIVERED, app=app)
    assert app.backend.get_state("one") == states.PENDING


@pytest.mark.parametrize("policy", ["raise", "skip", "retry"])
@pytest.mark.parametrize(
    ("ahead", "header"),
    [
        (None, messages.CONFLICTS_HEADER),
        (SimpleNamespace(about={"id": "one", "redelivered": "1"}), messages.COPIES_HEADER),
    ],
    ids=["unknown", "a copy"],
)
def test_a_run_that_met_a_holder_at_its_end_is_sent_again(
    app: Celery, monkeypatch: pytest.MonkeyPatch, policy: Any, ahead: Any, header: str
) -> None:
    """It is or may have been a copy, whose result this run must not overwrite. A copy is no conflict."""

    def meet(*args: object) -> NoReturn:
        raise LockBusy("The lock 'k' is held by another owner.", lock="k", ahead=ahead)

    @app.task(name="met", shared=False)
    @zk_locked("k", on_conflict=policy, max_conflicts=1)  # type: ignore[untyped-decorator]
    def met() -> None: ...

    monkeypatch.setattr(Lock, "__enter__", meet)
    monkeypatch.setattr(context, "_read_queue", lambda spec: ())
    trace_task(met, "one", (), {}, request={**REDELIVERED, "delivery_info": {messages.QUEUE_KEY: "celery"}}, app=app)
    assert app.backend.get_state("one") not in (states.FAILURE, states.REVOKED)
    assert received(app).headers[header] == 1
