"""Locked tasks, and messages for them that no well-meaning program sends."""

from __future__ import annotations

import itertools
import os
import random
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from celery.worker import state as worker_state
from celery.worker.control import inspect_command

from django_zklock import zk_locked
from support.celeryapp import app

TASKS = {
    "plain": ("{key}", {}),
    "read": ("{key}", {"kind": "read"}),
    "lingers": ("{key}", {"linger": 0.2}),
    "several": (["{key}", "other"], {}),
    "several_read": (["{key}", "other"], {"kind": "read"}),
    "attribute": ("{key.pk}", {}),
    "patient": ("{key}", {"timeout": 30}),
    "skips": ("{key}", {"on_conflict": "skip", "skip_value": "skipped"}),
    "computed": (lambda key: key, {"on_conflict": "wait"}),
}
"""Name, lock and options of the tasks."""


def work(key):
    return "done"


for _name, (_lock, _options) in TASKS.items():
    app.task(name=f"hostile.{_name}")(zk_locked(_lock, **_options)(work))
    app.task(name=f"hostile.{_name}.late", acks_late=True)(zk_locked(_lock, **_options)(work))


@app.task(name="hostile.unlocked")
def unlocked(mark):
    return mark


def write(key, book, mark):
    for word in ("begin", "end"):
        with Path(book).open("a") as file:
            file.write(f"{key} {word} {mark}\n")
        time.sleep(0.005 if word == "begin" else 0)
    return mark


app.task(name="hostile.write")(zk_locked("{key}")(write))
app.task(name="hostile.write.late", acks_late=True)(zk_locked("{key}")(write))
app.task(name="hostile.write_two")(zk_locked(["{key}", "two"])(write))


def assert_excluded(book):
    at_work = {}
    for line in book.read_text().splitlines():
        key, word, mark = line.split()
        if word == "begin":
            assert key not in at_work, f"{mark} has begun before the end of {at_work[key]}, under {key}"
            at_work[key] = mark
        else:
            assert at_work.pop(key) == mark
    assert not at_work


@inspect_command()
def main_process(state, **_kwargs):
    return {"pid": os.getpid(), "unacknowledged": list(worker_state.requests)}


TEXTS = ("", ".", "..", "/", "a/b", "a//b", "/a", "../../other", "{key}", "{0.__class__}", "%s", "%2F", "!reads")
CHARACTERS = ("\x00", "\n\t\x1b[2J", "\ud800", "x\udfff", "\u202e", "e\u0301", "\U0001f512")
NO_TEXTS = (None, 0, -1, 10**40, float("nan"), True, [], [1, [2]], {}, ["x"] * 1000)
KEYS = (
    *(*TEXTS, *CHARACTERS, *NO_TEXTS),
    *("_c_x-lock-0000000001", "zookeeper", "x" * 300, "x" * 100_000, {"pk": 1}, {"pk": None}, {"__class__": "x"}),
)
WRONG = (None, "", "x", "{", "[]", '{"seen": 1}', 0, -1, 2**62, 1.5, True, [], [None], {})

OURS = ["redelivered", "copies", "late", "conflicts", "lost", "wait", "unique"]
OURS += ["history"]
HEADERS = (*(f"zklock_{name}" for name in OURS), "zklock_beat", "traceparent", "headers", "retries")

FORGED = {
    "zklock_wait": {"memory": [1], "grants": [{"index": 0, "number": 1}], "number": 1, "error": "X", "resend": True},
    "zklock_history": {"x-death": [{"queue": [], "count": 2**63 - 1}], "x-delivery-count": -(2**63), "task": "x"},
    "zklock_redelivered": "2026-01-01T00:00:00",
    "traceparent": "00-" + "0" * 32 + "-" + "f" * 16 + "-zz",
    "zklock_unique": "task/../..",
}


PAST = (-1, "0001-01-01T00:00:00")


@dataclass
class Message:
    name: str
    args: tuple[Any, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def is_expired(self):
        return self.options.get("expires") in PAST


def hostile_messages(count, seed=1):
    chance = random.Random(seed)
    names = [f"hostile.{name}{late}" for name in TASKS for late in ("", ".late")]
    wrong = [{name: value} for name in HEADERS for value in (*WRONG, *([FORGED[name]] if name in FORGED else []))]
    chance.shuffle(wrong)
    keys, headers = itertools.cycle(KEYS), itertools.cycle(wrong)
    for number in range(count):
        name, key = chance.choice(names), next(keys)
        yield (
            Message(name, (key,)),
            Message(name, (f"headers-{number % 7}",), {"headers": next(headers)}),
            _odd(chance, name, key),
        )[number % 3]


def _odd(chance, name, key):
    return chance.choice(
        [
            Message(name),
            Message(name, (key, key)),
            Message(name, (), {"kwargs": {"other": key}}),
            Message(name, (key,), {"kwargs": {"key": "odd"}}),
            *(Message(name, ("odd",), {"expires": past}) for past in PAST),
            Message(name, (key,), {"expires": 30}),
            Message(f"unknown.{uuid.UUID(int=chance.getrandbits(128))}", (key,)),
            Message(name, ("odd",), {"delivery_info": {"redelivered": True}}),
            Message(name, (key,), {"delivery_info": {"redelivered": "x"}, "headers": {"zklock_redelivered": "none"}}),
            Message(name, ("odd",), {"task_id": f"odd.{chance.random()}\u202e" + "x" * 100}),
            Message(name, ("odd",), {"countdown": 0.1}),
            Message(name, ("odd",), {"argsrepr": "\x00", "shadow": "../x"}),
            Message(name, ("odd",), {"group_id": "none", "root_id": "none", "parent_id": "none"}),
        ]
    )
