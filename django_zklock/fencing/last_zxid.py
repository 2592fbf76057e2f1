"""The last zxid of the ensemble: no token above it has been given out yet."""

from __future__ import annotations

from django_zklock import clock
from django_zklock.exceptions import ZooKeeperUnavailable
from django_zklock.zk import process
from django_zklock.zk.errors import ZkError
from django_zklock.zk.gateway import Gateway
from django_zklock.zk.requests import call
from django_zklock.zk.session import Session

REPLY_TIMEOUT = 2.0  # seconds to wait for the answer where a transaction is open meanwhile


def ask(reply_timeout: float = REPLY_TIMEOUT) -> int | None:
    """
    Return a zxid that the ensemble reached after this call began; None if ZooKeeper does not answer in time.

    A quorum confirms it, because a server that is cut off from the others has only an old one.
    """
    try:
        return _last_zxid(process.current(), reply_timeout)
    except ZooKeeperUnavailable:
        return None


def current() -> int:
    """Return the same. Raises `ZooKeeperUnavailable`."""
    session = process.current()
    return _last_zxid(session, session.options.connect_timeout)


def _last_zxid(session: Session, reply_timeout: float) -> int:
    reply = call(session, Gateway.last_zxid, clock.now() + reply_timeout)
    if isinstance(reply, ZkError):
        raise ZooKeeperUnavailable(str(reply)) from reply
    return reply
