"""Knows what becomes of the note about a break, by which the one who had the lock learns who did it and why."""

from __future__ import annotations

from functools import partial
from typing import Final

from django_zklock.locks.errand import Errand
from django_zklock.locks.protocol.loss import LASTS
from django_zklock.queue import broken
from django_zklock.queue.broken import Note
from django_zklock.zk.errors import ZkError
from django_zklock.zk.gateway import Gateway, NamesReply, Node, NodeReply

NOTES_LAST: Final = 60.0
"""Seconds after which the next break deletes a note that nobody has."""
AT_MOST: Final = 100
"""Notes that are looked at."""


def left(errand: Errand, note: Note, where: str) -> bool:
    """Tell whether this note was left, with the deletion that it is about."""
    answer = errand.ask(lambda gateway, done: gateway.read(where, done))
    found = Note.decode(answer.data) if isinstance(answer, Node) else None
    return found is not None and found.id == note.id


def sweep(errand: Errand, where: str) -> None:
    """Delete the note later, and old ones that nobody has deleted now; on the protocol's thread."""
    gateway = errand.session.attached(Gateway)
    parent = broken.directory(errand.base)

    def on_note(answer: NodeReply) -> None:
        if isinstance(answer, Node):
            gateway.children(parent, partial(on_listed, answer.ctime))

    def on_listed(now: float, names: NamesReply) -> None:
        if not isinstance(names, ZkError):
            for name in names[:AT_MOST]:
                gateway.read(f"{parent}/{name}", partial(on_read, now))

    def on_read(now: float, answer: NodeReply) -> None:
        if isinstance(answer, Node) and answer.ctime < now - NOTES_LAST:
            gateway.delete(answer.path, lambda answer: None)

    errand.session.loop.call_later(LASTS, lambda: gateway.delete(where, lambda answer: None))
    gateway.read(where, on_note)
