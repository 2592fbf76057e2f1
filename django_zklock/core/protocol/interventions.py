"""Handle what other sessions do to the znode of a holder: they break the lock, or request a release."""

from __future__ import annotations

import socket
import threading
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial

from django_zklock.core.errors import ZkLockError
from django_zklock.core.log import Logger
from django_zklock.core.protocol.grant import RECORD_TIMEOUT, Grant
from django_zklock.core.protocol.story import Story, drive
from django_zklock.core.queue import break_record, release_request
from django_zklock.core.queue.break_record import BreakRecord
from django_zklock.core.zk.errors import NodeMissing
from django_zklock.core.zk.gateway import Gateway, Node
from django_zklock.core.zk.session import Session

logger = Logger("django_zklock.locks")

RECORD_LASTS = 10.0  # seconds until that record is deleted


def lose(session: Session, grant: Grant) -> None:
    """
    End a grant whose znode was deleted by another session. If an operator broke the lock, the record has the reason.

    The grant is invalid at once. The work is aborted when the record was read, or after `RECORD_TIMEOUT`.
    """
    read = threading.Event()
    grant.node_gone = read
    timer = session.loop.call_later(RECORD_TIMEOUT, lambda: on_read(None))

    def on_read(record: BreakRecord | ZkLockError | None) -> None:
        timer.cancel()
        if isinstance(record, BreakRecord):
            grant.why_deleted = str(record)
        if not grant.released:
            grant.lose(grant.why_deleted)
        read.set()

    drive(_read_record(session, grant), on_read)


def report_deleted(session: Session, grant: Grant) -> None:
    """Log that another session had deleted the znode of a grant before its release, unless an operator broke it."""

    def on_read(record: BreakRecord | ZkLockError | None) -> None:
        if isinstance(record, NodeMissing):
            logger.warning(
                "lock %r was released by process %d on %s, but its znode %s had been deleted by another session, so "
                "others may have held it meanwhile. Find out who deletes znodes there, and restrict their ACL",
                grant.key,
                grant.session.pid,
                socket.gethostname(),
                grant.path,
                about=grant.about,
                extra=grant.log_fields(),
            )

    drive(_read_record(session, grant), on_read)


def _read_record(session: Session, grant: Grant) -> Story[BreakRecord | None]:
    """Return the record of a break, which is deleted a little later; None if it is unreadable."""
    path = break_record.record_path(session.options.base, grant.path.rpartition("/")[2])
    node: Node = yield partial(session.gateway.read, path)
    record = BreakRecord.decode(node.data)
    if record is not None:
        session.loop.call_later(RECORD_LASTS, partial(session.gateway.delete, path))
    return record


def read_request(gateway: Gateway, grant: Grant, node: Node, own: bytes) -> None:
    """
    Receive a release request, which is in the data of `node`. `own` is the data that this process has written last.

    Curator's request replaces all data. So this writes our data back, with the request in our form.
    """
    request = release_request.requested(node.data)
    if request is None:
        return
    if node.data == release_request.CURATOR:
        before = grant.release_request
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        request = before if before is not None and request.same(before) else replace(request, at=now)
        gateway.write(node.path, release_request.with_request(own, request), node.version)
    if request != grant.release_request:  # else the znode was only read again
        grant.request_release(request)
