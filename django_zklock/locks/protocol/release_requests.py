"""Receive release requests: they are written into the data of the holder's znode."""

from __future__ import annotations

import logging
from dataclasses import replace
from datetime import datetime, timezone

from django_zklock.execution import work
from django_zklock.locks.protocol.grant import Grant
from django_zklock.queue import release_request
from django_zklock.zk.gateway import Gateway, Node

logger = logging.getLogger("django_zklock.locks")


def on_own_znode_read(gateway: Gateway, grant: Grant, node: Node, own: bytes) -> None:
    """
    Read the request in the data that the znode has now. `own` is the data that the znode was created with.

    Curator replaces the data. So this writes its own data back, with the request in our form. On the protocol's thread.
    """
    found = release_request.requested(node.data)
    if found is None or grant.released:
        return
    if node.data == release_request.CURATOR:
        before = grant.release_request
        now = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
        found = before if before is not None and found.same(before) else replace(found, at=now)
        gateway.write(node.path, release_request.with_request(own, found), node.version, lambda answer: None)
    if found == grant.release_request:
        return  # the znode was only read again
    grant.request_release(found)
    if grant.on_release_request is not None:
        grant.on_release_request(grant, found)
    logger.warning(
        "the holder of lock %r is asked to release by %s%s",
        grant.key,
        found,
        work.log_suffix(grant.about),
        extra={**grant.log_fields(), "user": found.by, "reason": found.reason},
    )
