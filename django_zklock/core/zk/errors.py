"""The errors of requests: kazoo's many errors become the few that locks tell apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from kazoo import exceptions as kazoo
from kazoo.protocol import serialization as wire

from django_zklock.core.errors import ZkLockError, ZooKeeperUnavailable

if not hasattr(kazoo, "RequestTimeoutError"):  # new in 2.11, with codes such as that of a throttled request
    raise ImportError("django-zklock needs kazoo 2.11 or newer: pip install -U kazoo")


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
_OTHER_REFUSALS = frozenset({kazoo.BadArgumentsError.code, kazoo.UnimplementedError.code})
_UNKNOWN = "this release does not know the code; see the server's log, and upgrade django-zklock"
_REPORT = "the server does not accept what this release sends; upgrade both, or report it as a bug"
_RECONFIGURED = "the servers are being reconfigured; try again when that has ended"
CREDENTIALS: Final = 'it refuses the credentials in ZKLOCK["AUTH"]; correct them'
_SEE_LOG = "a server has failed; see its log"

MEANINGS: Final[Mapping[int, str]] = {
    kazoo.SystemZookeeperError.code: _SEE_LOG,
    kazoo.RuntimeInconsistency.code: _SEE_LOG,
    kazoo.DataInconsistency.code: f"{_SEE_LOG}, and restore its data from the others",
    kazoo.ConnectionLoss.code: _SEE_LOG,
    kazoo.MarshallingError.code: f"{_REPORT}, unless a proxy has changed it",
    kazoo.UnimplementedError.code: "locks need ZooKeeper 3.6, or another server with container nodes",
    kazoo.OperationTimeoutError.code: "it took the servers too long; look at their load, disks and network",
    kazoo.BadArgumentsError.code: _REPORT,
    kazoo.UnknownSessionError.code: "the server does not know the session; see its log",
    kazoo.NewConfigNoQuorumError.code: _RECONFIGURED,
    kazoo.ReconfigInProcessError.code: _RECONFIGURED,
    kazoo.APIError.code: _REPORT,
    kazoo.NoAuthError.code: 'the credentials in ZKLOCK["AUTH"] may not do this; check them, and the ACL of {path}',
    kazoo.NoChildrenForEphemeralsError.code: "{path} is ephemeral, so another program made it; delete it, or set ROOT",
    kazoo.InvalidCallbackError.code: _REPORT,
    kazoo.InvalidACLError.code: 'ZooKeeper does not know a scheme or an id in ZKLOCK["ACL"]; correct it',
    kazoo.AuthFailedError.code: CREDENTIALS,
    kazoo.NotReadOnlyCallError.code: "the server is in no quorum and only reads; start the other servers",
    kazoo.EphemeralOnLocalSessionError.code: "set localSessionsUpgradingEnabled=true on the servers",
    kazoo.NoWatcherError.code: _REPORT,
    kazoo.ReconfigDisabledError.code: "set reconfigEnabled=true on the servers",
    kazoo.SessionClosedRequireSaslError.code: 'it requires authentication that ZKLOCK["AUTH"] does not give: a scheme '
    "of its enforce.auth.schemes, or SASL, which is not supported",
    kazoo.QuotaExceededError.code: "the quota at or above {path} is used up; raise it by setquota",
    kazoo.ThrottledOpError.code: "the server throttles its clients; lower its load, or raise its limits",
}
"""The meaning of each error of ZooKeeper, and the remedy. The errors that locks handle by themselves are not here."""


def request_name(request: object) -> str:
    """Return the name of a request in ZooKeeper's protocol. kazoo calls a multi "transaction"."""
    name = type(request).__name__
    return "multi" if isinstance(request, wire.Transaction) else name[:1].lower() + name[1:]


_OF_CHILDREN = (wire.Create, wire.Create2, wire.Delete)
# They change nothing, so they have no outcome.
_READS = (wire.GetData, wire.GetChildren, wire.GetChildren2, wire.GetACL, wire.Sync)


def translate(error: BaseException, request: Any, code: int = 0) -> ZkError:
    """
    Return our error for an error of kazoo's, which becomes its `__cause__`. `code` is one that kazoo does not know.

    Only a refusal shows that a write was not carried out. After a server error, a code that kazoo does not know, or an
    unreadable reply, the outcome is unknown. A read has no outcome: the same error may come on each new connection,
    so the caller gets it.
    """
    translated = _translated(error, request, code)
    translated.__cause__ = error
    return translated


def _translated(error: BaseException, request: Any, unknown: int) -> ZkError:
    for theirs, ours in _TRANSLATION:
        if isinstance(error, theirs):
            return ours()
    code = unknown or getattr(error, "code", 0)
    path = getattr(request, "path", "")
    of_acl = path.rpartition("/")[0] or "/" if isinstance(request, _OF_CHILDREN) else path
    why = meaning(code, of_acl) if code else f"{type(error).__name__}: {error}"
    what = f"{request_name(request)} of {path}" if path else request_name(request)
    translated: ZkError = OutcomeUnknown()
    if not unknown and (code < _API_ERROR or code in _OTHER_REFUSALS):
        translated = RequestRefused(f"ZooKeeper refused the request {what}: {why}.")
    elif isinstance(request, _READS):
        translated = RequestRefused(f"ZooKeeper's reply to {what} is unclear: {why}.")
    translated.code = code
    return translated


def meaning(code: int, path: str = "") -> str:
    """Return an error of ZooKeeper with its meaning and remedy. The ACL of the znode at `path` decides about it."""
    name = kazoo.EXCEPTIONS[code].__name__ if code in kazoo.EXCEPTIONS else "unknown error"
    return f"{name} ({code}: {MEANINGS.get(code, _UNKNOWN).format(path=path or 'the znodes')})"


def failure(results: Sequence[object]) -> Exception | None:
    """
    Return the error that made a transaction fail, or None if it was carried out.

    `results` are those of its operations. The other operations have errors too, but those do not say why.
    """
    errors = [error for error in results if isinstance(error, Exception)]
    return next((error for error in errors if not isinstance(error, _UNDONE)), errors[0] if errors else None)
