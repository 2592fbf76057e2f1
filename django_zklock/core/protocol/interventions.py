"""Handle what other sessions do to the znode of a holder: they delete it, or request a release."""

from __future__ import annotations

import socket
from dataclasses import replace
from datetime import datetime, timezone
from functools import partial

from django_zklock.core import fork
from django_zklock.core.execution.stack import DIRECTORY, FORKED, OFF
from django_zklock.core.log import Logger
from django_zklock.core.protocol.grant import Grant
from django_zklock.core.queue import release_request
from django_zklock.core.queue.nodes import Payload
from django_zklock.core.zk.errors import ZkError
from django_zklock.core.zk.gateway import Gateway, NamesReply, Node
from django_zklock.core.zk.session import Session

logger = Logger("django_zklock.locks")


def report_deleted(grant: Grant) -> None:
    """Log that another session had deleted the znode of a grant before its release."""
    logger.warning(
        "lock %r was released by process %d on %s, but its znode %s had been deleted by another session, so others may "
        "have held it meanwhile. If zklock.audit has no break of it, find out who deletes znodes there, and restrict "
        "their ACL",
        grant.key,
        grant.session.pid,
        socket.gethostname(),
        grant.path,
        about=grant.about,
        extra=grant.log_fields(),
    )


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
        now = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
        request = before if before is not None and request.same(before) else replace(request, at=now)
        gateway.write(node.path, release_request.with_request(own, request), node.version)
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


def read_stack_requests(session: Session, grant: Grant, node: Node) -> None:
    """Write the stack of the holder into the znodes of those who have asked for it; they delete them."""
    payload = Payload.decode(node.data) if b"asked_version" in node.data else None
    if payload is None or payload.asked_version == grant.asked_version:
        return  # nobody has asked since
    grant.asked_version = payload.asked_version
    directory = f"{session.options.base}/{DIRECTORY}"

    def on_listed(names: NamesReply) -> None:
        wanted = [] if isinstance(names, ZkError) else [name for name in names if name.startswith(f"{node.name}:")]
        if not wanted:
            return
        logger.info("the holder of lock %r is asked what it does", grant.key, about=grant.about)
        answer = partial(session.post, write, wanted[:100])  # more callers at the same time get no answer
        if not session.options.stacks:
            answer(OFF.encode())
        elif fork.has_dead_threads:
            answer(FORKED.encode())
        else:
            grant.show_stack(answer)

    def write(names: list[str], data: bytes) -> None:
        for name in names:  # the version of one that was filled before is not 0
            session.gateway.write(f"{directory}/{name}", data, 0)

    session.gateway.children(directory, on_listed)
