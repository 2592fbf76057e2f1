"""Write down what a process does under its locks. Both versions run it: it uses only what the reference has."""

import contextlib
import functools
import itertools
import os
import time
from contextvars import ContextVar
from pathlib import Path

from django.apps import apps
from django.db import transaction

import django_zklock
from support.chaos.history import Recorder

NAME = "MIXED_NAME"
"""Environment variable: the name of the process. It begins with that of its version, such as `old-web-1`."""
HISTORY = "MIXED_HISTORY"  # environment variable: the folder of the history

WORKING = "working-"  # how the name of a file in that folder begins which tells that the work of a message has begun


_numbers = itertools.count(1)
_stay = ContextVar("stay")


@functools.cache
def _recorder(pid):
    recorder = Recorder(Path(os.environ[HISTORY]), f"{os.environ[NAME]}-{pid}")
    recorder.write("imported", file=django_zklock.__file__)
    return recorder


def note(kind, /, **about):
    """Append an event. A process that was forked has a file of its own."""
    _recorder(os.getpid()).write(kind, **about)


def ready():
    note("ready")
    Path(os.environ[HISTORY], f"ready-{os.environ[NAME]}").touch()


def note_working(tag):
    Path(os.environ[HISTORY], f"{WORKING}{tag}").touch()


class Stay:
    """The time of one owner under one lock, from the call on."""

    def __init__(self, key, **wish):
        """Note the call; `wish` is what the checker should know of the lock: `kind`, `limit`, `linger`."""
        self.key = key
        self.op = next(_numbers)
        self.owner = f"{self.op}"
        self._granted = False
        self.note("invoke", timeout=None, **wish)

    def note(self, kind, /, **about):
        note(kind, o=self.owner, op=self.op, key=self.key, **about)

    @contextlib.contextmanager
    def inside(self, hold, **about):
        """Note the grant and the release round a block, which is to be the last before the release."""
        self._granted = True
        now = time.monotonic()  # first: a pause in between makes the claim too modest, never too bold
        self.note("granted", **{"token": hold.token, "until": now + hold.lease_remaining, **about})
        yield
        hold.check()
        self.note("release")

    @contextlib.contextmanager
    def around(self):
        try:
            yield
        except BaseException as error:
            self.note("release_failed" if self._granted else "refused", error=repr(error), definite=True)
            raise
        # A candidate that is stopped, and a task that is skipped, was granted nothing.
        self.note("released" if self._granted else "refused")

    def increment(self, hold):
        account_model = apps.get_model("ledgers", "Account")
        with transaction.atomic():
            account = account_model.objects.fenced(hold).get(name=self.key)
            account.balance += 1
            self.note("writing", token=hold.token, value=account.balance)
            account.save()
        self.note("fenced", token=hold.token, value=account.balance, ok=True)


def recorded(key_of, **wish):
    def decorate(locked):
        @functools.wraps(locked)
        def call(*args, **kwargs):
            stay = Stay(key_of(*args, **kwargs), **wish)
            token = _stay.set(stay)
            try:
                with stay.around():
                    return locked(*args, **kwargs)
            finally:
                _stay.reset(token)

        return call

    return decorate


@contextlib.contextmanager
def work(hold, ref, kind, **about):
    stay = _stay.get()
    with stay.inside(hold):
        stay.increment(hold)
        yield stay
        note("unit", ref=ref, kind=kind, **about)
