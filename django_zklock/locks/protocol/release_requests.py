"""Knows what a holder learns of a request to let go: it is in the data of the own node."""

from __future__ import annotations

import logging
from dataclasses import replace
from datetime import datetime, timezone

from django_zklock import signals
from django_zklock.execution import work
from django_zklock.locks.notify import send_about
from django_zklock.locks.protocol.grant import Grant
from django_zklock.queue import revocations
from django_zklock.zk.gateway import Gateway, Node

logger = logging.getLogger("django_zklock.locks")


def heed(gateway: Gateway, grant: Grant, node: Node, own: bytes) -> None:
    """
    Take note of what the own node says now; `own` is what it said at first. On the protocol's thread.

    Curator overwrites who the holder is, so that is written back, with the request in our form.
    """
    found = revocations.requested(node.data)
    if found is None or grant.released:
        return
    if node.data == revocations.CURATOR:
        before = grant.revocation
        now = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
        found = before if before is not None and found.same(before) else replace(found, at=now)
        gateway.write(node.path, revocations.with_request(own, found), node.version, lambda answer: None)
    if found == grant.revocation:
        return  # the watch was set anew
    grant.revoke(found)
    send_about(grant, signals.lock_revoke_requested, by=found.by, reason=found.reason)
    logger.warning(
        "the holder of lock %s is asked to let go by %s%s",
        grant.key,
        found,
        work.noted(grant.about),
        extra={**grant.logged(), "user": found.by, "reason": found.reason},
    )
