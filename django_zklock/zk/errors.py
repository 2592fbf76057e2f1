"""Translate kazoo's errors into the few that the lock core tells apart."""

from __future__ import annotations

from collections.abc import Sequence

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
    """No clear answer came: the request may have been carried out, or not."""


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
    *((getattr(kazoo, name), OutcomeUnknown) for name in ("RequestTimeoutError",) if hasattr(kazoo, name)),  # 2.11
    (kazoo.SessionMovedError, OutcomeUnknown),
    (RuntimeError, OutcomeUnknown),  # the reply is another request's; kazoo has no class of its own for that
)

_UNDONE = (kazoo.RolledBackError, kazoo.RuntimeInconsistency)
_API_ERROR = -100  # codes below this say that the server refused the request, and why
_NO_AUTH = ': the credentials in ZKLOCK["AUTH"] may not do this; check them, and the ACL of the nodes'
_OTHER_REFUSALS = frozenset({kazoo.BadArgumentsError.code})


def translate(error: BaseException, *, read: bool = False) -> ZkError:
    """
    Return our error for one of kazoo's; the original is its `__cause__`.

    Only a code that is a definite refusal says that a write was not carried out. The outcome is unknown after a server
    error, a code that kazoo does not know, or a reply that cannot be read. A read has no outcome: the same error may
    come again on each new connection, so it is passed on to the caller.
    """
    translated = _translated(error, read=read)
    translated.__cause__ = error
    return translated


def _translated(error: BaseException, *, read: bool) -> ZkError:
    for theirs, ours in _TRANSLATION:
        if isinstance(error, theirs):
            return ours()
    code = getattr(error, "code", 0)
    if code < _API_ERROR or code in _OTHER_REFUSALS:
        advice = _NO_AUTH if isinstance(error, kazoo.NoAuthError) else ""
        return ZkError(f"ZooKeeper refused the request: {type(error).__name__} ({code}{advice}).")
    if read:
        return ZkError(f"ZooKeeper's reply to a read is unclear: {type(error).__name__}: {error}.")
    return OutcomeUnknown()


def failure(results: Sequence[object]) -> Exception | None:
    """
    Return the error that made a transaction fail, of the results of its parts; None if it was carried out.

    The other parts have errors, too, but those do not say why.
    """
    errors = [each for each in results if isinstance(each, Exception)]
    return next((each for each in errors if not isinstance(each, _UNDONE)), errors[0] if errors else None)
