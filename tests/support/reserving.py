"""The reservations in ZooKeeper, and the task that has a key."""

import time
from contextlib import ExitStack

from django_zklock.contrib.celery.unique import reservations
from django_zklock.contrib.celery.unique.reservations import lock_key
from django_zklock.core.queue import operator_hold
from django_zklock.core.zk import process
from django_zklock.inspection import look_at
from django_zklock.names import template as names
from support.zoo import ROOM

_defaults = reservations.end.__kwdefaults__  # on a busy machine, a test would go on too early
_defaults["reply_timeout"] += min(ROOM, 5.0)


class Sender:
    """A task whose message is about to be sent: it has the key, or `other` is the task that has it."""

    def __init__(
        self,
        key="a/b",
        task_id="one",
        *,
        seconds=60,
        again=False,
        has_ended=lambda task_id: False,
        timeout=5.0,
    ):
        self._stack = ExitStack()
        reserved = reservations.reserved(
            key, task_id, task="shop.work", seconds=seconds, again=again, has_ended=has_ended, timeout=timeout
        )
        self.other = self._stack.enter_context(reserved)
        self.task_id = task_id if self.other is None else self.other

    def sent(self):
        """The message was sent, so the key is reserved."""
        self._stack.close()

    def fail(self):
        """The broker has refused the message."""
        error = OSError("no broker")
        try:
            with self._stack:
                raise error
        except OSError as raised:
            assert raised is error


def queued(key="a/b", task_id="one", **more):
    """Reserve a key for a task whose message is sent."""
    sender = Sender(key, task_id, **more)
    assert sender.other is None, sender.other
    sender.sent()
    return sender


def owner_of(key="a/b", task_id="two", **more):
    """Return the id of the task that another one with this id meets as a duplicate."""
    sender = Sender(key, task_id, **more)
    sender.sent()
    assert sender.other is not None
    return sender.other


def reservation(key):
    """Return the reservation of a key; None if it has none now."""
    lock = look_at(lock_key(key), reply_timeout=5.0)
    hold = lock.holders[0].operator if lock and lock.holders else None
    return None if hold is None or hold.is_over(process.current().gateway.clock.now() or time.time()) else hold


def holder(key):
    """Return the id of the task that has the key now; None if no task has it."""
    hold = reservation(key)
    return None if hold is None else hold.task_id


def path_of(zoo, key):
    """Return the directory of the reservations of a key."""
    return names.path(zoo.base, lock_key(key))


def reserved_names(zoo, key=""):
    """Return the keys that have a reservation, or this one if it has."""
    base = names.path(zoo.base, operator_hold.RESERVATIONS)
    reserved = []
    todo = [base]
    while todo:
        path = todo.pop()
        for name in zoo.names(path):
            if operator_hold.is_operator(name):
                reserved.append(path[len(base) + 1 :])
            else:
                todo.append(f"{path}/{name}")
    return [name for name in reserved if key in ("", name)]
