"""Knows how kazoo's errors translate into the few answers that the lock core tells apart."""

from __future__ import annotations

from kazoo import exceptions as kazoo

from django_zklock.exceptions import ZkLockError


class ZkError(ZkLockError):
    """ZooKeeper answered a request with an error."""


class NodeMissing(ZkError):
    """There is no node at that path."""


class NodeExists(ZkError):
    """There is a node at that path already."""


class NotEmpty(ZkError):
    """The node has children."""


class Outdated(ZkError):
    """The node has another version by now."""


class Unsupported(ZkError):
    """This server does not know the operation."""


class OutcomeUnknown(ZkError):
    """The connection broke before the answer came: the request may have been carried out, or not."""


class SessionGone(ZkError):
    """The session is over, and with it all its ephemeral nodes."""


_TRANSLATION: tuple[tuple[type[BaseException], type[ZkError]], ...] = (
    (kazoo.NoNodeError, NodeMissing),
    (kazoo.NodeExistsError, NodeExists),
    (kazoo.NotEmptyError, NotEmpty),
    (kazoo.BadVersionError, Outdated),
    (kazoo.UnimplementedError, Unsupported),
    # kazoo answers a request on a client that is being stopped with "closed", a kind of "expired"; whether the
    # session lives on is told by the client's state, never by the answer to one request.
    (kazoo.ConnectionClosedError, OutcomeUnknown),
    (kazoo.SessionExpiredError, SessionGone),
    (kazoo.ConnectionLoss, OutcomeUnknown),
    (kazoo.OperationTimeoutError, OutcomeUnknown),
    *((getattr(kazoo, name), OutcomeUnknown) for name in ("RequestTimeoutError",) if hasattr(kazoo, name)),  # 2.11
    (kazoo.SessionMovedError, OutcomeUnknown),
    (RuntimeError, OutcomeUnknown),  # an answer came that is another request's; kazoo has no class of its own for it
)


def translate(error: BaseException) -> ZkError:
    """Return our error for one of kazoo's; the original is its `__cause__`."""
    for theirs, ours in _TRANSLATION:
        if isinstance(error, theirs):
            translated = ours()
            break
    else:
        code = getattr(error, "code", None)
        if isinstance(error, kazoo.NoAuthError):
            code = f'{code}: the credentials in ZKLOCK["AUTH"] may not do this; check them, and the ACL of the nodes'
        translated = ZkError(f"ZooKeeper refused the request: {type(error).__name__}" + (f" ({code})" if code else ""))
    translated.__cause__ = error
    return translated
