"""
The dispatcher of a worker: it gives messages to the pool, in their order, and has tasks wait for their locks.

Nothing here raises into Celery, whose worker would end. If a step with a message fails, the message goes to the pool,
and the task acquires its lock there.
"""

from __future__ import annotations

import functools
import itertools
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import billiard
from celery import bootsteps
from celery.signals import task_received
from celery.utils.quorum_queues import detect_quorum_queues
from celery.worker import state
from django.utils.functional import cached_property
from kombu.utils.limits import TokenBucket

from django_zklock.contrib.celery.context import MessageContext
from django_zklock.contrib.celery.dispatch import DISPATCHER
from django_zklock.contrib.celery.dispatch.loops import HubLoop, event_loop_of, is_pool, run_logged, solo_loop_of
from django_zklock.contrib.celery.dispatch.pool_grants import PoolGrants
from django_zklock.contrib.celery.dispatch.pool_slots import PoolSlots
from django_zklock.contrib.celery.dispatch.shared_grants import PAYLOAD, SharedGrants, WaitPayload
from django_zklock.contrib.celery.dispatch.waiting_tasks import State, WaitingTask, WaitingTasks
from django_zklock.contrib.celery.introspection import arguments, locked_of
from django_zklock.contrib.celery.messages import (
    CONFLICTS_HEADER,
    FIRST_DELAY,
    WAITED_HEADER,
    count_in,
    headers_of,
)
from django_zklock.contrib.celery.unique import lifecycle
from django_zklock.core.log import Logger

logger = Logger("django_zklock.celery")

MOST_WAITING: Final = 1000
"""Messages that wait in one worker, unless the setting `zklock_max_waiting` says otherwise."""
CHECK_EVERY: Final = 0.25  # seconds between two looks for tasks that were revoked, have expired, or get no answer
ANSWER_WITHIN: float = 0.25  # seconds that a task with a slot waits for ZooKeeper, before the next one gets the slot
SLOT_WITHIN: Final = 0.02
"""Seconds for which a granted lock waits for a slot: as long as it takes to give it back, and to ask for it again."""
EARLY: Final = 0.25
"""Seconds by which a task may begin earlier than at its rate limit: ZooKeeper does not answer all in the same time."""
VISIBILITY_TIMEOUT: Final = {"redis": 3600.0, "sqs": 30.0, "filesystem": 3600.0, "memory": 3600.0}
"""
Seconds, by broker, after which it delivers an unacknowledged message again, unless an option says otherwise.

A queue of SQS may have another time. The last two, for development and tests, do so only when the worker ends.
"""
OTHERS: Final = 3600.0  # seconds: the same for brokers that the table does not name
CONSUMER_TIMEOUT: Final = 1800.0  # seconds: the default of RabbitMQ's `consumer_timeout`


class Dispatcher(bootsteps.StartStopStep):
    """The messages of one worker, from the consumer to the pool. Methods run on `loop` unless they say otherwise."""

    def __init__(self, consumer: Any, **options: Any) -> None:
        super().__init__(consumer, **options)
        setattr(consumer, DISPATCHER, self)
        self.tasks: dict[Any, WaitingTask] = {}  # by request: they need a lock and are not in the pool
        self._pausing: weakref.WeakSet[Any] = weakref.WeakSet()  # requests that were sent again, before their ETA
        self._consumer = consumer
        consumer.on_decode_error = functools.partial(_on_undecodable, consumer.on_decode_error)
        self._to_pool: Callable[[Any], object] = consumer.on_task_request
        self._queue: deque[Any] = deque()  # requests and tasks that need a slot, in the order in which they came
        self._ahead: deque[WaitingTask] = deque()  # those that get a slot before all of `_queue`
        self.is_answered = True  # whether ZooKeeper answers; set by the protocol's thread, too
        self._accepts = True  # whether tasks may wait for their locks here
        self._is_dispatching = False
        self._begun: dict[str, TokenBucket] = {}  # by task with a rate limit: how many more may begin now
        self._prefetch_count = 0  # with which the connection began
        self._next_check: Any = None  # an entry of the loop
        self.ends_process = True  # the process ends with the worker; tests run theirs in another thread

    def include_if(self, consumer: Any) -> bool:
        """Take over the messages before the pool forks its processes; return whether that worked."""
        try:
            self._create(consumer)
        except Exception:
            logger.exception("tasks of this worker cannot wait for locks in its main process")
            return False
        return True

    def _create(self, consumer: Any) -> None:
        self.loop = event_loop_of(consumer)
        self._solo_loop = solo_loop_of(consumer)
        forks = is_pool(consumer.pool, "prefork") and _forks(consumer.app)
        self.waiting = WaitingTasks(consumer, Dispatcher)
        self._shared = SharedGrants(consumer.app)
        self._slots = PoolSlots(consumer, self._shared if forks else None, self._on_end)
        self._grants = PoolGrants(self._shared, self._on_wakeup)
        # Processes that are spawned share no memory with this one: there, each task acquires its lock itself.
        if forks or is_pool(consumer.pool, "solo", "thread", "gevent"):
            consumer.on_task_request = self.accept
            task_received.connect(self._note_pause, sender=consumer)

    # --- from Celery ----------------------------------------------------------------------------------------------

    def _note_pause(self, *, request: Any, **kwargs: object) -> None:
        """Note a message that was sent again; Celery accepts it after its ETA."""
        if request.eta is not None and count_in(headers_of(request), CONFLICTS_HEADER):
            self._pausing.add(request)

    def accept(self, request: Any) -> object:
        """Accept a message from Celery; on the thread that has received it."""
        self._pausing.discard(request)
        try:
            task = self._waiting_task(request)
            if task is not None or self.tasks or self._queue or self._ahead:
                self.loop.run(self._run_step, self._enqueue, request, task)
                return None
            self._slots.use(request)
        except Exception:
            logger.exception("task %s does not wait for its lock in the main process", request.id)
        return self._to_pool(request)

    def _waiting_task(self, request: Any) -> WaitingTask | None:
        """Return the task if it may wait for its lock here; None if not, or if only the pool process can tell."""
        request.request_dict.pop(PAYLOAD, None)
        locked = locked_of(request.task)
        if locked is None or not locked.binder.is_static or locked.is_async:
            return None
        if not self._accepts or _is_stopping():
            return None
        try:
            call = locked.context_of(*arguments(request.task, request.args, request.kwargs), MessageContext(request))
            return WaitingTask(request, call, self) if call.options["timeout"] != 0 else None
        except Exception as error:  # noqa: BLE001 - the pool process raises the same, and there it ends the task
            logger.debug("the lock of task %s is not known here: %s", request.id, error)
            return None

    @property
    def has_fixed_prefetch(self) -> bool:
        """Whether the prefetch count is fixed, as on quorum queues and RabbitMQ 4: tasks that wait take places."""
        consumer = self._consumer
        driver = consumer.connection.transport.driver_type
        if hasattr(consumer, "qos_global"):
            return driver == "amqp" and consumer.qos_global is False
        # Celery before 5.7
        return bool(consumer.app.conf.worker_detect_quorum_queues) and detect_quorum_queues(consumer.app, driver)[0]

    @cached_property
    def _most_waiting(self) -> int:
        return int(self._consumer.app.conf.get("zklock_max_waiting", MOST_WAITING))

    def _has_place(self, task: WaitingTask) -> bool:
        """
        Return whether a task may stay here, although its message takes a prefetched place.

        The first ones may, in half of the places that neither the pool nor a long ETA takes.
        """
        if not self._prefetch_count or not self.has_fixed_prefetch:
            return True
        consumer = self._consumer
        in_pool = consumer.initial_prefetch_count // consumer.prefetch_multiplier
        with_eta = consumer.qos.value - consumer.initial_prefetch_count - len(self.waiting) - len(self._pausing)
        places = (self._prefetch_count - in_pool - with_eta) // 2
        return task in itertools.islice(self.waiting, max(0, places))

    @cached_property
    def longest_wait(self) -> float:
        """Half of the time after which the broker would deliver a waiting message again, in seconds."""
        conf = self._consumer.app.conf
        driver = self._consumer.connection.transport.driver_type
        given = conf.get("zklock_longest_wait")
        if given is not None:
            return float(given)
        if driver == "amqp":
            return CONSUMER_TIMEOUT / 2
        timeout: Any = (conf.broker_transport_options or {}).get("visibility_timeout", VISIBILITY_TIMEOUT.get(driver))
        if driver == "sqs":
            timeout = _timeout_of_sqs(self._consumer.task_consumer, timeout)
        if timeout is None:
            logger.info(
                "when the broker %r delivers again is not known: tasks wait here for at most half an hour", driver
            )
        return float(OTHERS if timeout is None else timeout) / 2

    # --- steps ------------------------------------------------------------------------------------------------------

    def schedule(self, task: WaitingTask, step: Callable[[WaitingTask], object]) -> None:
        """Take a step with a task soon, unless it has gone to the pool by then; from any thread."""
        run_logged(self.loop.call_soon, self._run_scheduled, task, step)

    def _run_scheduled(self, task: WaitingTask, step: Callable[[WaitingTask], object]) -> None:
        if self.tasks.get(task.request) is task:
            self._run_step(step, task)

    def _run_step(self, step: Callable[..., object], message: Any, *args: Any) -> None:
        """Take a step with a request or a task. If it fails, the message goes to the pool without a lock."""
        request = message.request if isinstance(message, WaitingTask) else message
        try:
            step(message, *args)
        except Exception:
            logger.exception("task %s does not wait for its lock in the main process", request.id)
            task = self.tasks.pop(request, None)
            self._queue = deque(other for other in self._queue if other is not request and other is not task)
            self._ahead = deque(other for other in self._ahead if other is not task)
            request.request_dict.pop(PAYLOAD, None)
            if task is not None:
                run_logged(task.cancel)
                run_logged(self.waiting.remove, task)
            self._give_to_pool(request)

    def _enqueue(self, request: Any, task: WaitingTask | None) -> None:
        if task is not None:
            self.tasks[request] = task
        self._queue.append(task or request)
        self._dispatch()

    def _dispatch(self) -> None:
        """Begin with as many messages as there are free slots."""
        if self._is_dispatching:
            return  # the loop below finds the new message
        self._check_later()
        self._is_dispatching = True
        try:
            while (self._ahead or self._queue) and self._slots.available > 0:
                self._run_step(self._start, (self._ahead or self._queue).popleft())
        finally:
            self._is_dispatching = False

    def _start(self, message: Any) -> None:
        """Give a message to the pool, or ask for its lock first; there is a free slot."""
        if not isinstance(message, WaitingTask):
            self._give_to_pool(message)
        elif message.state is State.ENDED:
            self._give_task(message)
        elif self.tasks.get(message.request) is message:  # else it was revoked
            if self.is_answered and not self.waiting.share_key_with(message):
                message.state = State.ASKING
                self._slots.use(message.request)
            else:  # without a slot: ZooKeeper is silent, or another task here is ahead
                self._wait(message)
            if message.state is not State.ENDED:
                self._grants.use_session()
                message.ask()

    def _wait(self, task: WaitingTask) -> None:
        """Have a task wait without a slot. If it may not, it is sent again."""
        task.state = State.WAITING
        self.waiting.add(task)
        self._send_back(task)

    def _send_back(self, task: WaitingTask) -> None:
        """Send a task again that may not wait here, or no longer."""
        if task.has_waited_too_long:
            longest = max(self.longest_wait / 2, FIRST_DELAY)  # the next message waits for its lock, too
            task.send_again("the broker would deliver the message again soon", longest)
        elif len(self.waiting) > self._most_waiting:
            task.send_again(f"{self._most_waiting} tasks of this worker wait already")
        elif task.is_pause_over and not self._has_place(task):
            task.send_again("others need the place of its message in this worker", FIRST_DELAY)

    def pass_slot_on(self, task: WaitingTask) -> None:
        """Let others have the slot: another owner has the lock, or ZooKeeper does not answer."""
        if task.state is State.ASKING:
            self._slots.release(task.request)
            self._wait(task)
            self._dispatch()

    def end_wait(self, task: WaitingTask) -> None:
        """Give a task whose wait has ended to the pool, or let it wait for a slot, or for its rate limit."""
        if task.is_granted and not self._may_begin(task):
            self._limit(task)
        elif task.request in self._slots or self._slots.available > 0:
            self._give_task(task)
        elif task.is_granted:
            self._ahead.appendleft(task)
            self.loop.call_later(SLOT_WITHIN, self._run_scheduled, task, self._give_back)
        else:
            self.waiting.remove(task)
            self._ahead.append(task)

    def _may_begin(self, task: WaitingTask) -> bool:
        """
        Return whether a task that has its locks may begin, by its `rate_limit`; count it if so.

        Celery limits how often such tasks are accepted. After a wait for a lock, many could begin at the same time.
        """
        consumer, name = self._consumer, task.request.task.name
        limit = None if consumer.disable_rate_limits else consumer.task_buckets[name]
        if limit is None:
            return True
        begun = self._begun.get(name)
        if begun is None or begun.fill_rate != limit.fill_rate:
            capacity = max(1.5, limit.fill_rate * EARLY)
            begun = self._begun[name] = TokenBucket(limit.fill_rate, capacity)
        return bool(begun.can_consume(1))

    def _limit(self, task: WaitingTask) -> None:
        """Give the locks of a task back, and have Celery accept its message again when its rate limit allows that."""
        request = task.request
        headers_of(request)[WAITED_HEADER] = task.milliseconds_waited
        self._drop(task)
        # Looked up in Celery 5.5 to 5.7; no public method does it.
        self._consumer._limit_task(request, self._consumer.task_buckets[request.task.name], 1)

    def _drop(self, task: WaitingTask) -> None:
        """Forget a task, and give back what it has."""
        request = task.request
        del self.tasks[request]
        task.cancel()
        self._slots.release(request)
        self.waiting.remove(task)
        state.task_ready(request)

    def _give_back(self, granted: WaitingTask) -> None:
        """
        Leave the queue of a granted lock, with all tasks of this worker, because no slot became free in time.

        These tasks are the first to get slots, in their order. Then they ask again.
        """
        if granted in self._ahead and granted.is_granted:
            for task in list(self.tasks.values()):
                if task in self.waiting and not set(granted.keys).isdisjoint(task.keys):
                    if task in self._ahead:  # it was granted its lock, too: a reader, or a permit of a semaphore
                        self._ahead.remove(task)
                    task.cancel()
                    self.waiting.remove(task)
                    self._ahead.append(task)

    def _give_task(self, task: WaitingTask) -> None:
        """Give a task to the pool, with its locks or with the error that ended its wait."""
        request = task.request
        self.waiting.remove(task)  # first: a request that is not reserved counts as ended
        grants = self._grants.add(task) if task.is_granted else []
        request.request_dict[PAYLOAD] = WaitPayload(self._shared.name, grants, task.error, task.resend)
        del self.tasks[request]
        self._give_to_pool(request)

    def _give_to_pool(self, request: Any) -> None:
        run_logged(self._slots.use, request)
        if self._solo_loop is None:
            self._give_now(request)
        else:
            self._solo_loop.call_soon(self._give_now, request)

    def _give_now(self, request: Any) -> None:
        try:
            self._to_pool(request)
        except Exception:
            logger.exception("the pool does not take task %s, which goes back to the broker", request.id)
            if (processes := self._consumer.controller.semaphore) is not None:
                run_logged(processes.release)  # Celery still counts one of them as busy
            state.task_ready(request)
            request.reject(requeue=True)
        run_logged(self._slots.release_if_ended, request)  # Celery drops a request that was revoked

    def _on_end(self, request: Any) -> None:
        """Free the slot of a task that has ended; from any thread."""
        self.loop.run(self._release_slot, request)

    def _release_slot(self, request: Any) -> None:
        self._slots.note_end(request)
        self._dispatch()

    def _on_wakeup(self) -> None:
        """Look for free slots: a pool process has written to the shared memory. On the thread of `PoolGrants`."""
        run_logged(self.loop.call_soon, self._dispatch)

    # --- from time to time ------------------------------------------------------------------------------------------

    def _check_later(self) -> None:
        if self._next_check is None and (self.tasks or self._queue):
            self._next_check = self.loop.call_later(CHECK_EVERY, self._check)

    def _check(self) -> None:
        """End tasks that were revoked, have expired or have waited too long. Repeat this while there are messages."""
        self._next_check = None
        run_logged(self._check_later)
        run_logged(self._slots.release_ended)
        run_logged(self.waiting.check, self.tasks.values())
        for task in list(self.tasks.values()):
            self._run_scheduled(task, self._check_task)
        self._dispatch()

    def _check_task(self, task: WaitingTask) -> None:
        if task.state is State.ENDED:
            if task not in self._ahead:  # a step has failed
                self.end_wait(task)
        elif task.has_value:  # the step that should use it has failed
            task.step()
        elif _is_revoked(task.request):
            self._drop(task)
        elif task.state is State.WAITING:
            self._send_back(task)
        elif task.state is State.ASKING and task.seconds_asking > ANSWER_WITHIN:
            self.is_answered = False  # so that the next tasks use no slot
            self.pass_slot_on(task)

    # --- the connection to the broker begins, and ends ----------------------------------------------------------------

    def start(self, consumer: Any) -> None:
        """Begin with a connection, on the thread that runs the worker. It may not be the one that has made it."""
        self._prefetch_count = consumer.initial_prefetch_count
        self.ends_process = threading.current_thread() is threading.main_thread()
        self.loop.thread = threading.get_ident()

    def register_with_event_loop(self, consumer: Any, hub: Any) -> None:
        """Begin with the event loop of a connection."""
        try:
            for loop in (self.loop, self._solo_loop):
                if isinstance(loop, HubLoop):
                    loop.register(hub)
        except Exception:
            logger.exception("tasks of this worker cannot wait for locks in its main process")
            self._accepts = False

    def stop(self, consumer: Any) -> None:
        """
        Leave all queues and forget the messages: the broker delivers them again, perhaps to another worker.

        A contender that stayed would be granted a lock for which there is no task.
        """
        run_logged(self.loop.run, self._forget_all)

    def _forget_all(self) -> None:
        if self._next_check is not None:  # Celery clears its timers
            self.loop.cancel(self._next_check)
            self._next_check = None
        tasks, self.tasks = self.tasks, {}
        self._queue.clear()
        self._ahead.clear()
        run_logged(self.waiting.clear)
        for task in tasks.values():
            state.requests.pop(task.request.id, None)
            self._slots.release(task.request)
            run_logged(task.cancel)

    def shutdown(self, consumer: Any) -> None:
        """Wait for the grants of the pool. Celery calls this at the end of the worker, when the pool has stopped."""
        self.loop.thread = threading.get_ident()  # `stop` may have found the loop at its end
        run_logged(self.loop.run, self._forget_all)
        run_logged(self._grants.close, ends_process=self.ends_process)
        run_logged(self.loop.close)


def _on_undecodable(report: Callable[..., object], message: Any, error: Exception) -> None:
    """Report a message that cannot be decoded as Celery does, which sends no signal."""
    report(message, error)
    run_logged(lifecycle.on_discarded, message)


def _timeout_of_sqs(consumer: Any, given: float) -> float:
    """
    Return the shortest `VisibilityTimeout` of the queues of SQS, in seconds; `given` if SQS does not tell it.

    The transport option counts only for queues that Kombu creates. Private names were looked up in Kombu 5.5 to 5.7.
    """
    channel, name = consumer.channel, "VisibilityTimeout"
    timeouts = []
    try:
        for queue in consumer.queues:
            client = channel.sqs(queue=channel.canonical_queue_name(queue.name))
            answer = client.get_queue_attributes(QueueUrl=channel._new_queue(queue.name), AttributeNames=[name])
            timeouts.append(float(answer["Attributes"][name]))
    except Exception as error:  # noqa: BLE001 - any error of the client, such as a missing permission
        logger.warning(
            "the VisibilityTimeout of a queue of SQS is not known, set the transport option visibility_timeout to it; "
            "%s s are assumed: %r",
            given,
            error,
        )
        return given
    return min(timeouts)


def _forks(app: Any) -> bool:
    """Return whether pool processes are forked, and inherit the memory of the main process."""
    return (app.conf.get("worker_pool_start_method") or billiard.get_start_method() or "fork") == "fork"


def _is_revoked(request: Any) -> bool:
    """Return whether a message was revoked or has expired. Then Celery has stored that, too."""
    may_be = request.expires or request.id in state.revoked or state.revoked_stamps
    return bool(may_be and request.revoked())


def _is_stopping() -> bool:
    should_stop: Any = state.should_stop  # the exit status, which may be 0
    return should_stop is not None
