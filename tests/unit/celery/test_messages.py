"""A message: its queue, and headers that anybody may have written."""

import functools
import time
from datetime import datetime, timedelta
from queue import Empty
from types import SimpleNamespace

import celery
import pytest
from celery import Celery, Task, states
from celery.app.trace import trace_task
from celery.exceptions import Reject
from celery.result import AsyncResult, EagerResult
from celery.worker.request import Request
from kombu import Exchange, Queue
from kombu.common import Broadcast

from django_zklock import Lock, zk_locked
from django_zklock.contrib.celery import messages
from django_zklock.contrib.celery.dispatch.dispatcher import _timeout_of_sqs
from django_zklock.decorators.context import AcquireAgain
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
def app():
    app = Celery(broker=f"memory://{__name__}", backend="cache+memory://", set_as_current=False)
    app.control.purge()  # all applications of this process share the memory
    yield app
    app.control.purge()
    for task_id in ("one", "sent"):
        app.backend.forget(task_id)
    app.close()


def received(app):
    name, accept = app.conf.task_default_queue, app.conf.accept_content
    with app.connection_for_read() as connection, connection.SimpleQueue(name, accept=accept) as queue:
        message = queue.get(block=False)
        message.ack()
    return message


def delivered(channel, exchange, key, **info):
    info |= {"exchange": exchange, "routing_key": key}
    return SimpleNamespace(channel=channel, delivery_info=info, headers={}, content_type="application/json")


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
def test_the_queue_of_a_message_is_found(app, exchange, key, queue):
    with app.connection_for_write() as connection:
        channel = connection.channel()
        for declared in QUEUES:
            declared.bind(channel).declare()
        channel.deadletter_queue = "m-dead"  # kombu puts there what has no queue
        tasks = app.amqp.TaskConsumer(channel, queues=[queue for queue in QUEUES if queue.name != "m-right"])
        message = delivered(channel, exchange, key)
        assert messages._queue_of(SimpleNamespace(task_consumer=tasks), message) == queue


def consuming(*queues):
    return SimpleNamespace(task_consumer=SimpleNamespace(queues=queues))


class SQS:
    """A channel of kombu and a client of boto3, as far as a queue's time is read by them."""

    def __init__(self, timeouts):
        self._timeouts = timeouts

    def canonical_queue_name(self, name):
        return name

    _new_queue = canonical_queue_name

    def sqs(self, queue):
        return self

    def get_queue_attributes(self, **request):
        (name,), url = request["AttributeNames"], request["QueueUrl"]
        return {"Attributes": {name: self._timeouts[url]}}


@pytest.mark.parametrize(
    ("timeouts", "seconds"),
    [({"m-one": "12"}, 12), ({"m-one": "40", "m-left": "7"}, 7), ({}, 30), ({"m-one": "x"}, 30)],
    ids=["a queue that exists", "the shortest of two", "no permission", "unreadable"],
)
def test_the_visibility_timeout_of_sqs_is_that_of_the_queue(timeouts, seconds):
    queues = [Queue(name) for name in timeouts or ["m-one"]]
    assert _timeout_of_sqs(SimpleNamespace(channel=SQS(timeouts), queues=queues), 30.0) == seconds


def test_a_task_of_an_unknown_queue_is_not_sent_again(app):
    """It waits in its slot, whatever its sender has written about its way."""

    @app.task(name="unknown", shared=False)
    def unknown():
        messages.send_again(unknown, messages.CONFLICTS_HEADER, ZkLockError("busy"))

    for info in ({"routing_key": "celery"}, {"exchange": "", "routing_key": "celery"}, {messages.QUEUE_KEY: ""}, {}):
        trace_task(unknown, "sent", (), {}, request={"id": "sent", "delivery_info": info, "headers": {}}, app=app)
        with pytest.raises(Empty):
            received(app)


@pytest.mark.parametrize("protocol", [1, 2])
def test_a_task_is_sent_again_straight_to_its_queue(app, protocol):
    """Neither its own routes nor the way of the first message count: other workers could get it, or nobody."""
    app.conf.task_protocol = protocol
    app.conf.task_routes = {"routed": {"queue": "other", "exchange": "elsewhere", "routing_key": "nowhere"}}

    @app.task(name="routed", shared=False)
    def routed():
        messages.send_again(routed, messages.CONFLICTS_HEADER, ZkLockError("busy"))

    first = {"exchange": "elsewhere", "routing_key": "nowhere", messages.QUEUE_KEY: "celery", "priority": 3}
    of_delivery = {"x-death": [{"count": 1}], "x-first-death-queue": "before", "CC": ["more"]}
    request = {
        "id": "sent",
        "delivery_info": first,
        "headers": {**of_delivery, "mine": 1, messages.CONFLICTS_HEADER: 2},
    }
    began = app.now()
    trace_task(routed, "sent", (), {}, request=request, app=app)
    took = (app.now() - began).total_seconds()
    message = received(app)
    read = {**message.headers, **message.properties, **message.delivery_info}
    assert {"exchange": "", "priority": 3, "mine": 1, messages.CONFLICTS_HEADER: 3}.items() <= read.items()
    assert of_delivery.keys().isdisjoint(message.headers)
    has_eta = message.headers if protocol == 2 else message.payload
    delay = (datetime.fromisoformat(has_eta["eta"]) - began).total_seconds()
    assert 2 * messages.FIRST_DELAY <= delay < took + 4 * messages.FIRST_DELAY, "it grows"


def test_a_message_that_is_sent_again_is_encoded_as_before_and_keeps_its_properties(app):
    app.conf.accept_content = ["json", "pickle"]

    def busy(stock):
        messages.send_again(task, messages.CONFLICTS_HEADER, ZkLockError("busy"))

    task = app.task(name="encoded", shared=False)(functools.wraps(zk_locked("k")(busy))(busy))
    encoding = {"serializer": "pickle", "compression": "gzip"}
    properties = {"delivery_mode": 1, "MessageGroupId": "tenant", "app_id": "shop", "mine": 1}
    sent = task.apply_async(({7: (2,)},), **encoding, **properties, expiration=60, MessageDeduplicationId="once")
    first = received(app)
    request = Request(first, app=app, task=task, headers=first.headers)
    messages.record_received(sender=consuming(Queue("celery")), request=request)
    trace_task(task, sent.id, *first.payload[:2], request=request.request_dict, app=app)
    again = received(app)
    assert (again.headers["id"], again.payload[0]) == (sent.id, ({7: (2,)},))
    assert (again.content_type, again.headers["compression"]) == (first.content_type, first.headers["compression"])
    assert {**properties, "expiration": "60000"}.items() <= again.properties.items()
    assert "MessageDeduplicationId" not in again.properties, "SQS would drop it"


@pytest.mark.skipif(celery.VERSION < (5, 7), reason="this Celery stores RETRY in any case")
@pytest.mark.parametrize("state", ["ABORTED", "CANCELLED", states.SUCCESS, states.FAILURE, states.REVOKED])
def test_a_state_that_others_have_stored_is_not_overwritten_by_a_retry(app, state):
    app.backend.store_result("sent", ValueError() if state in states.EXCEPTION_STATES else None, state)
    run_busy(app)
    assert app.AsyncResult("sent").state == state


@pytest.mark.parametrize("state", [states.PENDING, states.RECEIVED, states.STARTED, states.RETRY])
def test_a_task_that_is_sent_again_is_shown_as_a_retry(app, state):
    app.backend.store_result("sent", ValueError() if state in states.EXCEPTION_STATES else None, state)
    run_busy(app)
    assert app.AsyncResult("sent").state == states.RETRY


# --- other people's hooks for new calls ---------------------------------------------------------------------------


class Nothing(Task):
    def apply_async(self, *args, **options):
        return None


class Earlier(Task):
    def apply_async(self, *args, **options):
        return self.AsyncResult("earlier")


class Eager(Task):
    def apply_async(self, *args, **options):
        return EagerResult(str(self.request.id), None, states.REJECTED, name="eager")


class Refused(Task):
    def apply_async(self, *args, **options):
        raise LookupError("it is queued already")


class Changed(Task):
    def apply_async(self, args=None, *rest, **options):
        return super().apply_async(("secret", *args), *rest, **options)


class Retried(Task):
    def signature_from_request(self, *args, **options):
        raise LookupError("only for retries")

    retry = signature = subtask_from_request = signature_from_request


HOOKS = [Nothing, Earlier, Eager, Refused, Changed, Retried]


def run_busy(app, base=Task, **options):
    """Run a task that meets a conflict; return how its run ended."""

    @app.task(name="hooked", shared=False, base=base, typing=False, bind=True, **options)
    def hooked(self, *args):
        messages.send_again(self, messages.CONFLICTS_HEADER, ZkLockError("busy"))

    request = {"id": "sent", "delivery_info": {messages.QUEUE_KEY: "celery"}, "headers": {"mine": 1}, "retries": 3}
    return trace_task(hooked, "sent", ("secret", 7), {}, request={**request, "args": ("secret", 7)}, app=app)[1]


@pytest.mark.parametrize("where", ["task", "app"])
@pytest.mark.parametrize("base", HOOKS)
def test_a_message_that_is_sent_again_passes_no_hook_for_new_calls(app, base, where):
    """A hook may drop, refuse, change or count calls. It is the message of a call that was made."""
    if where == "app":
        app.task_cls = base
        app.__dict__.pop("Task", None)
    run_busy(app, base if where == "task" else app.Task)
    message = received(app)
    assert (message.headers["id"], message.headers["retries"], message.headers["mine"]) == ("sent", 3, 1)
    assert message.payload[:2] == [["secret", 7], {}]


@pytest.mark.parametrize("result", [None, EagerResult("sent", None, states.SUCCESS), AsyncResult("sent")])
@pytest.mark.parametrize("where", [Task, Celery], ids=["Task.apply_async", "Celery.send_task"])
def test_a_message_that_nobody_published_does_not_count_as_sent(app, monkeypatch, where, result):
    """The task waits in its slot, whatever the call has returned."""
    name = "apply_async" if where is Task else "send_task"

    def publish_nothing(*args, **options):
        return result

    monkeypatch.setattr(where, name, publish_nothing)
    assert isinstance(run_busy(app).retval, AcquireAgain)


def test_a_worker_whose_calls_are_eager_does_not_run_the_task_in_itself(app):
    app.conf.task_always_eager = True
    assert isinstance(run_busy(app).retval, AcquireAgain)


# --- the history of a message -------------------------------------------------------------------------------------


def restored(history, arguments=None, eta=None, **headers):
    """Return the request of a message that has this history, in a queue with these arguments."""
    message = delivered(None, "", "named", consumer_tag="None1")
    message.headers = {"id": "1", messages.HISTORY_HEADER: history, **headers}

    @Celery(set_as_current=False).task(shared=False)
    @zk_locked("k")
    def locked(): ...

    info = {"redelivered": False}
    request = SimpleNamespace(
        task=locked, request_dict=dict(message.headers), message=message, delivery_info=info, eta=eta
    )
    messages.record_received(sender=consuming(Queue("named", queue_arguments=arguments)), request=request)
    return request


def death(queue, count, reason="rejected"):
    return {"queue": queue, "reason": reason, "count": count, "time": "once"}


def test_counts_of_a_broker_go_on_in_the_next_message():
    history = {"x-death": [death("a", 2), death("b", 1, "expired")], "x-first-death-queue": "a", "redelivered": True}
    now = {"x-death": [death("a", 1)], "x-first-death-queue": "z", "x-last-death-queue": "a"}
    headers = restored(history, **now).request_dict
    assert headers["x-death"] == [death("a", 3), death("b", 1, "expired")]
    assert (headers["x-first-death-queue"], headers["x-last-death-queue"]) == ("a", "a")
    assert messages.HISTORY_HEADER not in headers, "a retry by the task itself would copy it"


def test_a_message_that_was_dead_lettered_is_in_a_queue_again():
    """Somebody has moved it back, and plain Celery would run it."""
    history, limit = {"x-delivery-count": 9, "x-acquired-count": 9, "redelivered": True}, {"x-delivery-limit": 2}
    request = restored(history, limit, **{"x-death": [death("named", 1)]})
    assert not request.request_dict.keys() & history.keys()
    assert not request.delivery_info["redelivered"]
    assert messages.RETURNS_KEY not in request.delivery_info


@pytest.mark.parametrize(
    ("arguments", "returns", "spent"),
    [
        ({"x-delivery-limit": 2}, 2, False),
        ({"x-delivery-limit": 2}, 3, True),
        ({"x-delivery-limit": 0}, 1, True),
        ({"x-delivery-limit": -1}, 1000, False),
        ({"x-delivery-limit": "2"}, 1000, False),
        ({}, 20, False),
        (None, 21, True),
    ],
    ids=["at its limit", "above it", "no return allowed", "no limit", "no number", "the default", "above the default"],
)
def test_the_limit_of_a_queue_is_that_of_all_messages_of_a_call(arguments, returns, spent):
    request = restored({"x-delivery-count": returns - 1, "redelivered": True}, arguments, **{"x-delivery-count": 1})
    assert request.request_dict["x-delivery-count"] == returns
    assert request.delivery_info.get(messages.RETURNS_KEY) == (returns if spent else None)


@pytest.mark.parametrize(("late", "header"), [(True, "mine"), (False, messages.COPY_HEADER)])
def test_only_a_copy_whose_message_is_not_acknowledged_is_rejected(late, header):
    request = SimpleNamespace(delivery_info={messages.RETURNS_KEY: 3}, headers={header: 1.5})
    task = SimpleNamespace(request=request, acks_late=late)
    messages.check_returns(task)
    task.acks_late, request.headers = True, {messages.COPY_HEADER: 1.5}
    with pytest.raises(Reject) as rejected:
        messages.check_returns(task)
    assert not rejected.value.requeue


def test_a_message_that_comes_back_during_its_pause_has_harmed_no_worker(app):
    """Each restart of the workers brings it back."""
    history, soon = {"x-delivery-count": 30, "redelivered": True}, app.now() + timedelta(seconds=30)
    request = restored(history, {"x-delivery-limit": 2}, eta=soon)
    assert request.request_dict["x-delivery-count"] == 30
    assert messages.RETURNS_KEY not in request.delivery_info


NO_COUNTS = [None, 5, "x", {}, [5], [{}], [{"count": "x"}]]


@pytest.mark.parametrize(
    "history",
    [
        *[None, 5, "x", [], {}, {"task": "other", "zklock_wait": {}, "id": "2"}, {5: 1}],
        *[{"x-death": value, "x-delivery-count": value} for value in NO_COUNTS],
        {"x-delivery-count": -(10**400), "redelivered": "yes"},
    ],
)
def test_a_history_that_anybody_has_written_changes_nothing_else(history):
    request = restored(history, {"x-delivery-limit": 5}, mine=1)
    assert {name: request.request_dict[name] for name in ("id", "mine")} == {"id": "1", "mine": 1}
    assert "task" not in request.request_dict
    assert "zklock_wait" not in request.request_dict
    assert not request.delivery_info["redelivered"]
    assert messages.RETURNS_KEY not in request.delivery_info


@pytest.mark.parametrize("value", [True, -1, -(10**400), 10**400, 1.5, "3", None, [1]])
def test_a_count_in_a_header_is_bounded(app, value):
    """The next pause can be computed from whatever somebody has written there."""
    times = messages.count(SimpleNamespace(headers={"count": value}), "count")
    assert 0 <= times <= 1_000_000
    assert 0 < messages.delay_before(SimpleNamespace(app=app), times + 1) <= messages.LONGEST_DELAY


@pytest.mark.parametrize("number", [1, 2, 3])
def test_the_delay_grows_and_is_partly_random(app, number):
    """So tasks that met once do not meet again."""
    paused = {messages.delay_before(SimpleNamespace(app=app), number) for _ in range(50)}
    longest = messages.FIRST_DELAY * 2 ** (number - 1)
    assert all(longest * 3 / 4 <= pause <= longest for pause in paused)
    assert max(paused) - min(paused) > longest / 8


def test_the_queue_of_a_task_without_a_lock_is_not_looked_up(app):
    """It is never sent again, and the look-up may be a request to the broker, for each message."""

    @app.task(shared=False)
    def plain(): ...

    @app.task(shared=False)
    @zk_locked("k")
    def locked(): ...

    for task, queue in ((plain, None), (locked, "named")):
        message = delivered(None, "", "named", consumer_tag="None1")
        request = SimpleNamespace(task=task, request_dict={"id": "1"}, message=message, delivery_info={})
        messages.record_received(sender=consuming(Queue("named")), request=request)
        assert request.delivery_info.get(messages.QUEUE_KEY) == queue


@pytest.mark.parametrize("headers", [5, "x", True, [], [["a", 1]], None])
def test_headers_that_are_none_are_dropped(headers):
    """A sender may put anything there. The process that runs the task gets what the main process has left."""
    message = SimpleNamespace(delivery_info={}, channel=None, headers={})
    request = SimpleNamespace(
        task=None, request_dict={"id": "1", "headers": headers}, message=message, delivery_info={}
    )
    messages.record_received(sender=None, request=request)
    assert messages.headers_of(request) == {"id": "1", "headers": None}
    assert messages.received_at(request) > 0


COPY = {
    "id": "one",
    "delivery_info": {"redelivered": True, messages.QUEUE_KEY: "celery"},
    "headers": {messages.COPY_HEADER: 1.5},
}


@pytest.mark.parametrize("flag", [{"redelivered": True}, {}])
def test_a_message_that_was_delivered_before_keeps_when_it_came_first(app, flag):
    @app.task(shared=False)
    @zk_locked("k")
    def locked(): ...

    message = delivered(None, "", "named", consumer_tag="None1")
    for given, came in (({}, pytest.approx(time.time(), abs=60)), ({messages.COPY_HEADER: 1.5}, 1.5)):
        request = SimpleNamespace(
            task=locked, request_dict={"id": "1", "headers": dict(given)}, message=message, delivery_info=dict(flag)
        )
        messages.record_received(sender=consuming(), request=request)
        assert messages.headers_of(request) == ({messages.COPY_HEADER: came} if flag else given)


def test_a_message_that_was_dead_lettered_is_no_copy_any_more():
    """Its rejection was stored as a result."""
    request = restored({}, **{"x-death": [death("named", 1)], messages.COPY_HEADER: 1.5})
    assert messages.COPY_HEADER not in messages.headers_of(request)


@pytest.mark.skipif(celery.VERSION < (5, 7), reason="this Celery stores RETRY in any case")
@pytest.mark.parametrize("header", [messages.COPIES_HEADER, messages.CONFLICTS_HEADER])
def test_a_copy_that_is_sent_again_stores_nothing(app, header):
    """Celery looks for a result before it writes RETRY. The other run may store one between the two."""

    @app.task(name="busy", shared=False)
    def busy():
        messages.send_again(busy, header, ZkLockError("busy"))

    trace_task(busy, "one", (), {}, request=COPY, app=app)
    assert app.backend.get_state("one") == states.PENDING


@pytest.mark.parametrize("policy", ["raise", "skip", "retry"])
@pytest.mark.parametrize("ahead", [None, SimpleNamespace(about={"id": "other"})], ids=["unknown", "another task"])
def test_a_copy_that_meets_a_conflict_is_sent_again(app, monkeypatch, policy, ahead):
    """Its other run may have died with the lock, and behind others. That is no conflict."""

    def meet(*args):
        raise LockBusy("The lock 'k' is held by another owner.", lock="k", ahead=ahead)

    @app.task(name="met", shared=False)
    @zk_locked("k", on_conflict=policy, max_conflicts=0)
    def met(): ...

    monkeypatch.setattr(Lock, "__enter__", meet)
    trace_task(met, "one", (), {}, request=COPY, app=app)
    headers = received(app).headers
    assert (headers[messages.COPIES_HEADER], headers[messages.COPY_HEADER]) == (1, 1.5)
    assert messages.CONFLICTS_HEADER not in headers
