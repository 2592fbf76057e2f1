"""Tell the holder of a lock that was deleted from outside whether it was broken, by whom and why."""

from __future__ import annotations

from django_zklock.locks.protocol.grant import Grant
from django_zklock.queue import break_record
from django_zklock.queue.break_record import BreakRecord
from django_zklock.zk.errors import NodeMissing
from django_zklock.zk.gateway import Gateway, Node, NodeReply

REPLY_TIMEOUT = 0.2  # seconds that the read of the record may take
LASTS = 10.0  # seconds until the record is deleted


def lose(gateway: Gateway, grant: Grant) -> None:
    """
    End a grant whose znode was deleted by another session. If the lock was broken, the record of that is the reason.

    The lease is invalid at once. The work is aborted once the record was read, or after `REPLY_TIMEOUT`.
    """
    session = gateway.session
    grant.node_gone = True
    path = break_record.record_path(session.options.base, grant.path.rpartition("/")[2])
    timer = session.loop.call_later(REPLY_TIMEOUT, lambda: on_read(NodeMissing()))

    def on_read(answer: NodeReply) -> None:
        timer.cancel()
        record = BreakRecord.decode(answer.data) if isinstance(answer, Node) else None
        if record is not None:
            session.loop.call_later(LASTS, lambda: gateway.delete(path, lambda answer: None))
        if not grant.released:
            grant.lose(grant.why_deleted if record is None else str(record))

    gateway.read(path, on_read)
