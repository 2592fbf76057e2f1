"""Handle what other sessions do to the znode of a holder: they delete it, or request a release."""

from __future__ import annotations

import socket

from django_zklock.core.log import Logger
from django_zklock.core.protocol.grant import Grant
from django_zklock.core.queue import release_request
from django_zklock.core.zk.gateway import Node

logger = Logger("django_zklock.locks")


def report_deleted(grant: Grant) -> None:
    """Log that another session had deleted the znode of a grant before its release."""
    logger.warning(
        "lock %r was released by process %d on %s, but its znode %s had been deleted by another session, so others may "
        "have held it meanwhile. If no operator broke it, find out who deletes znodes there, and restrict their ACL",
        grant.key,
        grant.session.pid,
        socket.gethostname(),
        grant.path,
        about=grant.about,
        extra=grant.log_fields(),
    )


def read_request(grant: Grant, node: Node) -> None:
    """Receive a release request, which is in the data of `node`."""
    request = release_request.requested(node.data)
    if request is not None and request != grant.release_request:  # else the znode was only read again
        grant.request_release(request)
