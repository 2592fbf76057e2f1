"""
The messages of tasks: what they tell of their task, and how a running task is sent again.
"""

from __future__ import annotations

import math
import random
import re
import threading
import time
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final, NoReturn

from billiard.exceptions import SoftTimeLimitExceeded
from celery import Celery, Task, states
from celery.backends.base import DisabledBackend
from celery.exceptions import Ignore, Reject, Retry, TaskRevokedError, TimeLimitExceeded, WorkerLostError
from celery.signals import after_task_publish, task_revoked
from celery.utils.time import maybe_make_aware
from kombu import Queue
from kombu.pools import producers
from kombu.serialization import registry  # type: ignore[attr-defined] # its stubs lack it

from django_zklock.contrib.celery.introspection import locked_of
from django_zklock.core import clock
from django_zklock.core.execution.work import Work
from django_zklock.core.locks.held import RELEASE_TIMEOUT
from django_zklock.core.log import Logger
from django_zklock.decorators.context import AcquireAgain
from django_zklock.exceptions import LockLost

logger = Logger("django_zklock.celery")

CONFLICTS_HEADER: Final = "zklock_conflicts"
"""How often the task was sent again because others held its lock."""
LOST_HEADER: Final = "zklock_lost"
"""How often it was sent again because it had lost its lock."""
LATE_HEADER: Final = "zklock_late"
"""How often it was sent again because it had lost its lock before its work began."""
WAITED_HEADER: Final = "zklock_waited"
"""Milliseconds that the task has waited for its lock, if it was sent again before its timeout was over."""
COPY_HEADER: Final = "zklock_redelivered"
"""When a copy, a message that the broker has delivered before, came to a worker first: in seconds since 1970."""
COPIES_HEADER: Final = "zklock_copies"
"""How often a copy was sent again because the lock was busy. That is not a conflict."""
HISTORY_HEADER: Final = "zklock_history"
"""The headers of a delivery that earlier messages of this call had, and "redelivered"."""

FIRST_DELAY: Final = 0.5  # seconds before a task is tried again, doubled each time
LONGEST_DELAY: Final = 15.0
LONGEST_PREFETCHED: Final = 5.0  # the same where a message with an ETA may take the place of another
LONGEST_ID: Final = 255  # characters of an id that others read in a znode; callers choose ids
_WORK: Final = "zklock_work"  # attributes of a request
_RECEIVED: Final = "_zklock_received"
_UNSENT: Final = "zklock_unsent"
QUEUE_KEY: Final = "zklock_queue"  # of `delivery_info`
_MOST: Final = 1_000_000  # for a count in a header, which anybody may have written
_RETURNS: Final = "x-delivery-count"
_COUNTS: Final = (_RETURNS, "x-acquired-count")  # of the deliveries of one message; the second from RabbitMQ 4.3 on
_OF_DELIVERY: Final = re.compile(
    "x-death|x-(first|last)-death-.*|x-(delivery|acquired)-count|x-deduplication-header|CC"
)
"""Headers of one delivery, for which RabbitMQ would copy or drop the next message that has them, or miscount."""
_ENCODING_KEY: Final = "zklock_encoding"  # of `delivery_info`: the content type and the compression
_NOT_KEPT: Final = frozenset(
    (
        *("application_headers", "content_type", "content_encoding", "body_encoding", "delivery_info", "delivery_tag"),
        *("correlation_id", "reply_to", "priority", "user_id", "MessageDeduplicationId", "DelaySeconds"),
    )
)
"""
Properties of one message, of which the next message of this call has its own, or must have none.

RabbitMQ refuses the `user_id` of another sender. SQS would drop a message with the same `MessageDeduplicationId`.
"""
RETURNS_KEY: Final = "zklock_returns"  # of `delivery_info`: how often workers gave it back, if that is too often
DELIVERY_LIMIT: Final = 20  # of a queue that does not say, as in RabbitMQ from version 4 on
_DELAY: Final = re.compile(r"^(?:[01]\.){28}")  # what RabbitMQ's native delay puts before a routing key

# --- what a message tells -------------------------------------------------------------------------------------------


def work_of(task: Task[..., Any]) -> Work:
    """Return the description of the running task for others in the queue of a lock, without its arguments."""
    request: Any = task.request
    work: Work | None = request.__dict__.get(_WORK)
    if work is None:
        work = describe(task, vars(request))
        setattr(request, _WORK, work)
    return work


def describe(task: Task[..., Any], message: Mapping[str, Any]) -> Work:
    """Return the description of a task, running or not, from its message: "redelivered" says that it is a copy."""
    headers, info = message.get("headers") or {}, message.get("delivery_info") or {}
    name, task_id = str(task.name), message.get("id")
    about = {"task": name, "id": str(task_id or "")[:LONGEST_ID], "retries": str(message.get("retries") or 0)}
    about["queue"] = _DELAY.sub("", str(info.get("routing_key") or ""))
    if COPY_HEADER in headers:
        about["redelivered"] = "1"
    return Work(f"task {name} {task_id}", about)


def count(request: Any, header: str) -> int:
    """Return the number in a header of the running task; 0 if it has none."""
    return count_in(request.headers or {}, header)


def count_in(headers: Mapping[str, Any], header: str) -> int:
    """Return the number in a header of a message; 0 if it has none."""
    return _bounded(headers.get(header))


def _bounded(value: object) -> int:
    return min(max(value, 0), _MOST) if type(value) is int else 0


def headers_of(request: Any) -> dict[str, Any]:
    """Return the headers that the process of a task will see, to read or change them in the worker's main process."""
    headers: dict[str, Any] = request.request_dict
    given: dict[str, Any] | None = headers.get("headers")
    return headers if given is None else given


def record_received(*, sender: Any, request: Any, **kwargs: object) -> None:
    """
    Record when a message came: it is unacknowledged from then on, also before its ETA.

    Record also what a task with a lock has to know if it is sent again: its queue, its encoding and its history.
    """
    setattr(request, _RECEIVED, clock.now())
    message, info, headers = request.message, request.delivery_info, request.request_dict
    if _is_redelivered(message):
        info["redelivered"] = True
    if not isinstance(headers.get("headers"), dict):  # the sender may have put anything there
        headers["headers"] = None  # also for the process that runs the task
    if locked_of(request.task) is None:  # to learn the queue, kombu asks Redis about some exchanges
        return
    info[QUEUE_KEY] = _queue_of(sender, message)
    info[_ENCODING_KEY] = (message.content_type, message.headers.get("compression"))
    own = headers_of(request)
    if own is not headers:  # those of an agent: Celery shows the task no others
        own |= {name: value for name, value in headers.items() if name.startswith("zklock_")} | _of_delivery(headers)
    if own.get("x-death"):  # it was dead-lettered, and is in a queue again, like a new one
        own.pop(COPY_HEADER, None)
    if info.get("redelivered"):
        own.setdefault(COPY_HEADER, time.time())
    history = own.pop(HISTORY_HEADER, None)
    if isinstance(history, dict):
        _restore_history(request, sender, history)


def _is_redelivered(message: Any) -> bool:
    """Return whether the broker has delivered a message before. Celery itself knows only of Redis and RabbitMQ."""
    of_sqs: Any = (message.delivery_info.get("sqs_message") or {}).get("Attributes", {})
    of_virtual = getattr(message, "_raw", {})
    return int(of_sqs.get("ApproximateReceiveCount", 1)) > 1 or bool(of_virtual.get("redelivered"))


def _restore_history(request: Any, consumer: Any, history: Mapping[str, Any]) -> None:
    """
    Add what brokers have said of the earlier messages of this call to what the broker says of this one.

    A message that was dead-lettered since then counts its deliveries from 0, as in RabbitMQ: it is in a queue again.
    """
    headers, info = headers_of(request), request.delivery_info
    now, earlier = _of_delivery(headers), _of_delivery(history)
    if now.get("x-death"):
        _drop_counts(earlier)
    elif history.get("redelivered") is True:
        info["redelivered"] = True
    headers |= _joined(now, earlier)
    returns = _bounded(headers.get(_RETURNS))
    pauses = request.eta is not None and request.eta.timestamp() > time.time()
    if not pauses and returns > _most_returns(consumer, info.get(QUEUE_KEY)):
        info[RETURNS_KEY] = returns


def _joined(now: dict[str, Any], earlier: dict[str, Any]) -> dict[str, Any]:
    """Return the headers of two deliveries as one."""
    joined = {**earlier, **now}
    joined |= {name: value for name, value in earlier.items() if name.startswith("x-first-death-")}
    for name in _COUNTS:
        times = _bounded(now.get(name)) + _bounded(earlier.get(name))
        if times:
            joined[name] = times
    deaths = _joined_deaths(now.get("x-death"), earlier.get("x-death"))
    if deaths:
        joined["x-death"] = deaths
    return joined


def _most_returns(consumer: Any, queue: object) -> float:
    """Return how often workers may give a message of this queue back."""
    arguments = {known.name: known.queue_arguments for known in consumer.task_consumer.queues}
    limit = (arguments.get(queue) or {}).get("x-delivery-limit", DELIVERY_LIMIT)
    return limit if type(limit) is int and limit >= 0 else math.inf


def _of_delivery(headers: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in headers.items() if _OF_DELIVERY.fullmatch(str(name))}


def _drop_counts(headers: dict[str, Any]) -> None:
    for name in _COUNTS:
        headers.pop(name, None)


def _joined_deaths(*lists: object) -> list[dict[str, Any]]:
    """Return headers `x-death`, the newest first, as one. It has one entry for each queue and reason."""
    joined: dict[tuple[str, str], dict[str, Any]] = {}
    for deaths in lists:
        for death in deaths if isinstance(deaths, list) else ():
            if isinstance(death, dict):
                key = (str(death.get("queue")), str(death.get("reason")))
                entry = joined.setdefault(key, {**death, "count": 0})
                entry["count"] += _bounded(death.get("count"))
    return list(joined.values())


def check_returns(task: Task[..., Any]) -> None:
    """
    Raise `Reject` if the messages of a copy were given back more often than its queue allows.

    The queue itself counts for each message. If it has a dead-letter exchange, the message goes there. A task that was
    given back during a pause has harmed no worker.
    """
    returns = (task.request.delivery_info or {}).get(RETURNS_KEY)
    if returns and task.acks_late and COPY_HEADER in (task.request.headers or {}):
        raise Reject(f"workers gave it back {returns} times, and its queue does not allow more", requeue=False)


def _queue_of(consumer: Any, message: Any) -> str:
    """
    Return the name of the queue by which a message came; empty if it is not known, or ends with the connection.

    It is always one that this worker consumes from: with Redis or SQS, the sender has written what is read here. No
    public attribute tells the queue, so another version of kombu may lack the private ones.
    """
    info = message.delivery_info
    channel = message.channel
    tasks = consumer.task_consumer
    try:
        if not hasattr(channel, "typeof"):  # kombu has no exchanges of its own: RabbitMQ
            names = [name for name, tag in tasks._active_tags.items() if tag == info["consumer_tag"]]
        elif channel.typeof(info["exchange"]).type == "fanout":  # such messages are in no queue
            names = []
        else:
            names = channel._lookup(info["exchange"], info["routing_key"])
    except Exception as error:  # noqa: BLE001 - any error of a broker's client
        logger.info("the queue of task %r is not known: %r", message.headers.get("id"), error)
        names = [info.get("routing_key")] if info.get("exchange") == "" else []
    names = [queue.name for queue in tasks.queues if queue.name in names and not queue.auto_delete]
    return names[0] if len(names) == 1 else ""


def received_at(request: Any) -> float:
    """Return when a message came, on `clock.now()`."""
    received: float = getattr(request, _RECEIVED, 0.0) or clock.now()
    return received


# --- sending the running task again -----------------------------------------------------------------------------------


def delay_before(task: Task[..., Any], times: int) -> float:
    """
    Return the delay in seconds before a task runs again; `times` is 1 for the first time.

    RabbitMQ fixes the prefetch count of quorum queues, and from version 4 on that of all queues.
    """
    transport = task.app.connection_for_write().get_transport_cls()
    has_limit = transport.driver_type == "amqp" or task.app.conf.get("worker_eta_task_limit")
    longest = LONGEST_PREFETCHED if has_limit else LONGEST_DELAY
    longest = min(longest, FIRST_DELAY * 2.0 ** min(times - 1, 10))
    # A quarter of it is random, so that tasks with a conflict do not return at the same time.
    return round(longest * random.uniform(0.75, 1.0), 3)  # noqa: S311


def expiry(app: Celery, expires: Any) -> float | None:
    """Return when a task with the option `expires` expires, in seconds since 1970; None: never."""
    if isinstance(expires, str):
        expires = datetime.fromisoformat(expires)
    if isinstance(expires, datetime):
        return float(maybe_make_aware(expires, app.timezone).timestamp())
    return None if expires is None else time.time() + float(expires)


def send(task: Task[..., Any], headers: dict[str, Any], delay: float) -> None:
    """
    Publish the running task again, with the retries it has had.

    `Task.retry` would count against the task's own `max_retries`, but waiting for a lock is not a failure. A task that
    expires before it could run again is not sent, but ends here. Otherwise the worker would store it as REVOKED, and
    the end of this run could overwrite that. If the task cannot be published, for whatever reason, it must not end: its
    message may be acknowledged. So this run goes on as if it were the next one, and `AcquireAgain` is raised.
    """
    request: Any = task.request
    check_returns(task)
    expires = expiry(task.app, request.expires)
    if expires is not None and expires <= time.time() + delay:
        revoke(task, request, "expired")
        task_revoked.send(task, request=request, terminated=False, signum=None, expired=True)  # as a worker does
        raise Ignore("the task expires before it could run again")
    try:
        _publish(task, headers, delay)
    except (LockLost, SoftTimeLimitExceeded):  # they end the run itself
        raise
    except Exception as broken:
        if not hasattr(request, _UNSENT):
            setattr(request, _UNSENT, True)
            logger.warning("task %r cannot be sent again, so it waits for its lock in its slot: %r", request.id, broken)
        request.headers = {**(request.headers or {}), **headers}
        raise AcquireAgain(min(delay, FIRST_DELAY)) from broken


def _publish(task: Task[..., Any], headers: dict[str, Any], delay: float) -> None:
    """
    Send the running task straight to its queue, and wait until the broker confirms that.

    Its exchange could deliver it to other workers, too. Celery's native delay, which quorum queues have with a topic
    exchange, needs that exchange, takes no fractions of a second, and drops what nobody has bound. So the worker waits
    for the ETA, which is in a header: of an option, Celery would make a native delay, or warn that there is none.

    It is no new call, which the project's own `apply_async` might refuse, change or count. Celery's own one is used.
    """
    request: Any = task.request
    info = request.delivery_info or {}
    queue = info.get(QUEUE_KEY)
    if not queue:
        raise ValueError("it is not known by which queue it came")
    if task.app.conf.task_always_eager:
        raise ValueError("task_always_eager is set")
    eta = task.app.now() + timedelta(seconds=delay)
    known: dict[str, Any] = task.app.amqp.queues
    options: dict[str, Any] = {
        **_kept_options(request),
        **request.as_execution_options(),
        "headers": {**_headers_with_history(request), **headers, "eta": eta.isoformat()},
        "ignore_result": vars(request).get("ignore_result", task.ignore_result),
        "queue": Queue(queue, no_declare=True),
        "exchange": "",
        "routing_key": queue,
        "declare": [known[queue]] if queue in known else [],
        "priority": info.get("priority"),
        # Celery would compute these from arguments that the sender has hidden.
        "argsrepr": getattr(request, "argsrepr", None),
        "kwargsrepr": getattr(request, "kwargsrepr", None),
    }
    if task.app.conf.task_protocol == 1:  # it has the ETA in its body
        options["eta"] = eta
    connection = task.app.connection_for_write(transport_options={"confirm_publish": True})
    threads: list[int] = []

    def note(**message: object) -> None:
        threads.append(threading.get_ident())

    # What `apply_async` returns is no proof: an agent or a subclass of `Celery` may have dropped the message.
    after_task_publish.connect(note, sender=task.name, weak=False)
    try:
        with producers[connection].acquire(block=True) as producer:
            Task.apply_async(task, request.args, request.kwargs, producer=producer, **options)
    finally:
        after_task_publish.disconnect(note, sender=task.name)
    if threading.get_ident() not in threads:
        raise ValueError("its message was not published")


def _kept_options(request: Any) -> dict[str, Any]:
    """Return the properties of the running task's message, and how its sender has encoded it."""
    properties = vars(request).get("properties") or {}
    options = {name: value for name, value in properties.items() if name not in _NOT_KEPT}
    if options.get("expiration") is not None:
        options["expiration"] = int(options["expiration"]) / 1000  # kombu takes seconds
    content_type, compression = request.delivery_info.get(_ENCODING_KEY, (None, None))
    if content_type in registry.type_to_name:
        options["serializer"] = registry.type_to_name[content_type]
    if compression:
        options["compression"] = compression
    return options


def _headers_with_history(request: Any) -> dict[str, Any]:
    """Return the headers of the next message of this call. `_restore_history` reads them."""
    own = request.headers or {}
    history = _of_delivery(own)
    if request.delivery_info.get("redelivered"):
        history["redelivered"] = True
    else:
        _drop_counts(history)  # of another message: `Task.retry` copies them
    headers = {name: value for name, value in own.items() if not _OF_DELIVERY.fullmatch(name)}
    return {**headers, HISTORY_HEADER: history} if history else headers


def send_again(
    task: Task[..., Any], header: str, error: Exception, *, longest: float = LONGEST_DELAY, **headers: Any
) -> NoReturn:
    """
    Publish the running task again after a delay that grows with the count in `header`, and end this run.

    Celery shows it as a retry. A copy stores no RETRY. Celery looks for a result, and then writes: it could overwrite
    the one that another run has just stored. A state that others have stored, such as ABORTED, stays, too. Celery
    before 5.7 stores RETRY all the same.
    """
    times = count(task.request, header) + 1
    delay = min(delay_before(task, times), longest)
    headers[header] = times
    send(task, headers, delay)
    if "redelivered" in work_of(task).about or not _shows_retry(task):
        task.request.ignore_result = True
    raise Retry(exc=error, when=delay) from error  # type: ignore[arg-type]


def _shows_retry(task: Task[..., Any]) -> bool:
    """Return whether RETRY is to be stored: the stored state is not RETRY already, nor one of others."""
    request: Any = task.request
    stored = {} if request.ignore_result else _stored(task.backend, str(request.id))
    return stored.get("status", states.PENDING) in (states.PENDING, states.RECEIVED, states.STARTED)


def check_done(task: Task[..., Any]) -> None:
    """
    Raise `Ignore` if another run of a copy has done the work since it came; called under the lock, before the work.

    A result is stored only after the release was sent. So a copy that finds none looks once more, a little later, if
    another run may have begun: the message of a task without `acks_late` is acknowledged by then. A copy that finds no
    result does the work, and is no copy from then on.
    """
    request: Any = task.request
    came = request.headers.get(COPY_HEADER)
    if came is None:
        return
    pauses = (RELEASE_TIMEOUT, 0.0) if task.acks_late and not request.ignore_result else (0.0,)
    for pause in pauses:
        done = finished_at(task.backend, str(request.id))
        if isinstance(came, float) and done is not None and done > came:
            raise Ignore(f"another run of task {request.id} has done the work")
        time.sleep(pause)
    request.headers = {name: value for name, value in request.headers.items() if name != COPY_HEADER}


# --- how a run ends ---------------------------------------------------------------------------------------------------


def is_given_back(task: Task[..., Any], state: str | None, ended_with: object) -> bool:
    """Return whether a task that ended in this state has given its message back to the broker."""
    return state == states.REJECTED and bool(getattr(ended_with, "requeue", False)) and bool(task.acks_late)


def died(task: Task[..., Any], error: BaseException) -> bool:
    """Return whether a task failed with its process and will not be redelivered; in the worker's main process."""
    if isinstance(error, TimeLimitExceeded):
        return not task.acks_late or bool(getattr(task, "acks_on_timeout", True))
    return isinstance(error, WorkerLostError)


def revoke(task: Task[..., Any], request: Any, reason: str) -> None:
    """
    Store REVOKED as the end of a task that will not do its work, also for later steps of its chain, and for its chord.

    Without this, `get()` would wait for ever. Celery's own `mark_as_revoked` forgets the chain.
    """
    task.backend.mark_as_failure(
        str(request.id),
        TaskRevokedError(reason),
        request=request,
        store_result=not request.ignore_result or bool(task.store_errors_even_if_ignored),
        call_errbacks=False,  # nothing failed
        state=states.REVOKED,
    )


def finished_at(backend: Any, task_id: str) -> float | None:
    """
    Return when the final result of a task was stored, in seconds since 1970; 0 if the backend does not say when.

    Returns None if there is no result, or no backend that can tell.
    """
    stored = _stored(backend, task_id)
    return _seconds(stored.get("date_done")) if stored.get("status") in states.READY_STATES else None


def _stored(backend: Any, task_id: str) -> Mapping[str, Any]:
    """Return what a result backend has stored for a task; empty if it cannot tell."""
    if isinstance(backend, DisabledBackend) or backend.as_uri().startswith("rpc://"):
        return {}
    try:
        stored: Mapping[str, Any] = backend.get_task_meta(task_id, cache=False)
    except Exception as error:  # noqa: BLE001 - any error of a backend's client
        logger.warning("the result backend cannot tell the state of task %r: %r", task_id, error)
        return {}
    return stored


def _seconds(moment: Any) -> float:
    """Return a time of a result backend, a text or a `datetime`, in seconds since 1970. One without a zone is UTC."""
    try:
        moment = datetime.fromisoformat(moment) if isinstance(moment, str) else moment
        return float(maybe_make_aware(moment).timestamp())
    except (AttributeError, TypeError, ValueError, OverflowError):
        return 0.0
