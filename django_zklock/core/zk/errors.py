"""The errors of requests: kazoo's many errors become the few that locks tell apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from kazoo import exceptions as kazoo
from kazoo.protocol import serialization as wire

from django_zklock.core.errors import ZkLockError, ZooKeeperUnavailable
from django_zklock.core.zk.codes import meaning


class ZkError(ZkLockError):
    """A request failed."""

    path = ""
    """The znode of the operation that failed, if the request was a transaction."""
    code = 0
    """The error code of ZooKeeper; 0 if it has sent none, or one that locks handle by themselves."""


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
    (kazoo.SessionExpiredError, SessionGone),
    (kazoo.ConnectionLoss, OutcomeUnknown),
    (kazoo.RequestTimeoutError, OutcomeUnknown),
    (kazoo.SessionMovedError, OutcomeUnknown),
    (RuntimeError, OutcomeUnknown),  # kazoo raises it when the reply belongs to another request
)

_UNDONE = (kazoo.RolledBackError, kazoo.RuntimeInconsistency)
_API_ERROR = -100  # with a code below this, the server refused the request
_OTHER_REFUSALS = frozenset({kazoo.BadArgumentsError.code, kazoo.UnimplementedError.code})


def request_name(request: object) -> str:
    """Return the name of a request in ZooKeeper's protocol. kazoo calls a multi "transaction"."""
    name = type(request).__name__
    return "multi" if isinstance(request, wire.Transaction) else name[:1].lower() + name[1:]


_OF_CHILDREN = (wire.Create, wire.Create2, wire.Delete)
_RIGHTS: Final[dict[type, str]] = {
    **dict.fromkeys((wire.Create, wire.Create2), "create"),
    **dict.fromkeys((wire.GetData, wire.GetChildren, wire.GetChildren2), "read"),
    wire.SetData: "write",
    wire.Delete: "delete",
}
# They change nothing, so they have no outcome. The same holds for requests with the attribute `is_read`.
_READS = (wire.GetData, wire.GetChildren, wire.GetACL, wire.Sync)


def translate(error: BaseException, request: Any, code: int = 0) -> ZkError:
    """
    Return our error for an error of kazoo's, which becomes its `__cause__`. `code` is one that kazoo does not know.

    Only a refusal shows that a write was not carried out. After a server error, a code that kazoo does not know, or an
    unreadable reply, the outcome is unknown. A read has no outcome: the same error may come on each new connection,
    so the caller gets it.
    """
    ours = next((ours for theirs, ours in _TRANSLATION if isinstance(error, theirs)), None)
    translated = _unexpected(error, request, code) if ours is None else ours()
    translated.__cause__ = error
    return translated


def _unexpected(error: BaseException, request: Any, unknown: int) -> ZkError:
    """Return our error for one of kazoo's that locks do not handle by themselves."""
    code = unknown or getattr(error, "code", 0)
    why = f"{type(error).__name__}: {error}"
    if code:
        why = meaning(code, _path_of_acl(request), _RIGHTS.get(type(request), ""))
    what = request_name(request)
    if getattr(request, "path", ""):
        what += f" of {request.path}"
    translated: ZkError = OutcomeUnknown()
    if not unknown and (code < _API_ERROR or code in _OTHER_REFUSALS):
        translated = RequestRefused(f"ZooKeeper refused the request {what}: {why}.")
    elif isinstance(request, _READS) or getattr(request, "is_read", False):
        translated = RequestRefused(f"ZooKeeper's reply to {what} is unclear: {why}.")
    translated.code = code
    return translated


def _path_of_acl(request: Any) -> str:
    """Return the path of the znode whose ACL decides about a request; empty if it names none."""
    path: str = getattr(request, "path", "")
    return path.rpartition("/")[0] or "/" if isinstance(request, _OF_CHILDREN) else path


def failure(results: Sequence[object]) -> Exception | None:
    """
    Return the error that made a transaction fail, or None if it was carried out.

    `results` are those of its operations. The other operations have errors too, but those do not say why.
    """
    errors = [error for error in results if isinstance(error, Exception)]
    return next((error for error in errors if not isinstance(error, _UNDONE)), errors[0] if errors else None)
