"""Handle what other sessions do to the znode of a holder: they break the lock, or request a release."""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import datetime, timezone

from django_zklock.core.log import Logger
from django_zklock.core.protocol.grant import RECORD_TIMEOUT, Grant
from django_zklock.core.queue import break_record, release_request
from django_zklock.core.queue.break_record import BreakRecord
from django_zklock.core.zk.errors import NodeMissing
from django_zklock.core.zk.gateway import Gateway, Node, NodeReply
from django_zklock.core.zk.session import Session

logger = Logger("django_zklock.locks")

RECORD_LASTS = 10.0  # seconds until that record is deleted


def lose(session: Session, grant: Grant) -> None:
    """
    End a grant whose znode was deleted by another session. If an operator broke the lock, the record has the reason.

    The grant is invalid at once. The work is aborted when the record was read, or after `RECORD_TIMEOUT`.
    """
    gateway, read = session.gateway, threading.Event()
    grant.node_gone = read
    path = break_record.record_path(session.options.base, grant.path.rpartition("/")[2])
    timer = session.loop.call_later(RECORD_TIMEOUT, lambda: on_read(NodeMissing()))

    def on_read(reply: NodeReply) -> None:
        timer.cancel()
        record = BreakRecord.decode(reply.data) if isinstance(reply, Node) else None
        if record is not None:
            session.loop.call_later(RECORD_LASTS, lambda: gateway.delete(path, lambda reply: None))
            grant.why_deleted = str(record)
        if not grant.released:
            grant.lose(grant.why_deleted)
        read.set()

    gateway.read(path, on_read)


def read_request(gateway: Gateway, grant: Grant, node: Node, own: bytes) -> None:
    """
    Receive a release request, which is in the data of `node`. `own` is the data that this process has written last.

    Curator's request replaces all data. So this writes our data back, with the request in our form.
    """
    request = release_request.requested(node.data)
    if request is None or grant.released:
        return
    if node.data == release_request.CURATOR:
        before = grant.release_request
        now = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
        request = before if before is not None and request.same(before) else replace(request, at=now)
        gateway.write(node.path, release_request.with_request(own, request), node.version, lambda reply: None)
    if request == grant.release_request:
        return  # the znode was only read again
    grant.request_release(request)
    logger.warning(
        "the holder of lock %r is asked to release by %s",
        grant.key,
        request,
        about=grant.about,
        extra={**grant.log_fields(), "user": request.by, "reason": request.reason},
    )
