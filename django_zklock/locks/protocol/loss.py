"""Knows how the one whose lock was broken learns by whom and why, without losing time over it."""

from __future__ import annotations

from django_zklock.locks.protocol.grant import Grant
from django_zklock.queue import broken
from django_zklock.queue.broken import Note
from django_zklock.zk.errors import NodeMissing
from django_zklock.zk.gateway import Gateway, Node, NodeReply

PATIENCE = 0.2  # seconds that the note may take
LASTS = 10.0  # seconds that a note is left for others to read


def lose(gateway: Gateway, grant: Grant) -> None:
    """
    End a grant whose node was deleted by somebody else, with the reason that a note tells if the lock was broken.

    The note is one read away, and the work is stopped once it has come, or failed to; the lease is invalid before.
    """
    session = gateway.session
    grant.node_gone = True
    path = broken.place(session.options.base, grant.path.rpartition("/")[2])
    timer = session.loop.call_later(PATIENCE, lambda: on_read(NodeMissing()))

    def on_read(answer: NodeReply) -> None:
        timer.cancel()
        note = Note.decode(answer.data) if isinstance(answer, Node) else None
        if note is not None:
            session.loop.call_later(LASTS, lambda: gateway.delete(path, lambda answer: None))
        if not grant.released:
            grant.lose(grant.deleted if note is None else str(note))

    gateway.read(path, on_read)
