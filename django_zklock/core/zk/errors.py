"""The errors of requests: kazoo's many errors become the few that locks tell apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from kazoo import exceptions as kazoo

from django_zklock.core.errors import ZkLockError, ZooKeeperUnavailable

if not hasattr(kazoo, "RequestTimeoutError"):  # new in 2.11, with codes such as that of a throttled request
    raise ImportError("django-zklock needs kazoo 2.11 or newer: pip install -U kazoo")


class ZkError(ZkLockError):
    """A request failed."""

    path = ""
    """The znode of the operation that failed, if the request was a transaction."""


class NodeMissing(ZkError):
    """There is no znode at that path."""


class NodeExists(ZkError):
    """There is a znode at that path already."""


class NotEmpty(ZkError):
    """The znode has children."""


class Outdated(ZkError):
    """The znode has another version."""


class OutcomeUnknown(ZkError):
    """The reply was lost or unclear. The request may have been carried out, or not."""


class SessionGone(ZkError):
    """The session is over, and its ephemeral znodes are deleted."""


INTERRUPTED: Final = (OutcomeUnknown, SessionGone)
"""
The connection broke while the request was under way. An event of the session follows: `on_connected` or
`on_session_lost`. So an object that hears these events does nothing now, and continues then.
"""


class RequestRefused(ZkError, ZooKeeperUnavailable):
    """ZooKeeper refused the request, or its reply to a read is unclear. This one reaches users."""


_TRANSLATION: tuple[tuple[type[BaseException], type[ZkError]], ...] = (
    (kazoo.NoNodeError, NodeMissing),
    (kazoo.NodeExistsError, NodeExists),
    (kazoo.NotEmptyError, NotEmpty),
    (kazoo.BadVersionError, Outdated),
    # On a client that is being stopped, kazoo answers a request with "closed", which is a subclass of "expired".
    # Only the state of the client tells whether the session is over, never the reply to one request.
    (kazoo.ConnectionClosedError, OutcomeUnknown),
    (kazoo.SessionExpiredError, SessionGone),
    (kazoo.ConnectionLoss, OutcomeUnknown),
    (kazoo.RequestTimeoutError, OutcomeUnknown),
    (kazoo.SessionMovedError, OutcomeUnknown),
    (RuntimeError, OutcomeUnknown),  # kazoo raises it when the reply belongs to another request
)

_UNDONE = (kazoo.RolledBackError, kazoo.RuntimeInconsistency)
_API_ERROR = -100  # with a code below this, the server refused the request
_ADVICE = {
    kazoo.AuthFailedError: ': it refuses the credentials in ZKLOCK["AUTH"]',
    kazoo.NoAuthError: ': the credentials in ZKLOCK["AUTH"] may not do this; check them, and the ACL of {path}',
    kazoo.InvalidACLError: ': ZooKeeper does not know a scheme or an id in ZKLOCK["ACL"]',
    kazoo.UnimplementedError: ": locks need ZooKeeper 3.6, or another server with container nodes",
}
_OTHER_REFUSALS = frozenset({kazoo.BadArgumentsError.code, kazoo.UnimplementedError.code})


def translate(error: BaseException, *, read: bool = False, path: str = "") -> ZkError:
    """
    Return our error for an error of kazoo's, which becomes its `__cause__`.

    Only a refusal shows that a write was not carried out. After a server error, a code that kazoo does not know, or an
    unreadable reply, the outcome is unknown. A `read` has no outcome: the same error may come on each new connection,
    so the caller gets it. `path` is the znode whose ACL decides about the request.
    """
    translated = _translated(error, read=read, path=path)
    translated.__cause__ = error
    return translated


def _translated(error: BaseException, *, read: bool, path: str) -> ZkError:
    for theirs, ours in _TRANSLATION:
        if isinstance(error, theirs):
            return ours()
    code = getattr(error, "code", 0)
    if code < _API_ERROR or code in _OTHER_REFUSALS:
        advice = _ADVICE.get(type(error), "").format(path=path or "the znodes")
        return RequestRefused(f"ZooKeeper refused the request: {type(error).__name__} ({code}{advice}).")
    if read:
        return RequestRefused(f"ZooKeeper's reply to a read is unclear: {type(error).__name__}: {error}.")
    return OutcomeUnknown()


def failure(results: Sequence[object]) -> Exception | None:
    """
    Return the error that made a transaction fail, or None if it was carried out.

    `results` are those of its operations. The other operations have errors too, but those do not say why.
    """
    errors = [error for error in results if isinstance(error, Exception)]
    return next((error for error in errors if not isinstance(error, _UNDONE)), errors[0] if errors else None)
