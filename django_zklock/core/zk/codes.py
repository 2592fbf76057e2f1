"""The error codes of ZooKeeper: what each means, and the remedy. This module does not import kazoo."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

CREDENTIALS: Final = 'it refuses the credentials in ZKLOCK["AUTH"]; correct them'
REQUIRES_AUTHENTICATION: Final = (
    'it requires authentication that ZKLOCK["AUTH"] does not give: a scheme of its enforce.auth.schemes, or SASL, '
    "which is not supported"
)
_SEE_LOG = "a server has failed; see its log"
_REPORT = "the server does not accept what this release sends; upgrade both, or report it as a bug"
_RECONFIGURED = "the servers are being reconfigured; try again when that has ended"
_UNKNOWN = "unknown error", "this release does not know the code; see the server's log, and upgrade django-zklock"

MEANINGS: Final[Mapping[int, tuple[str, str]]] = {
    -1: ("SystemZookeeperError", _SEE_LOG),
    -2: ("RuntimeInconsistency", _SEE_LOG),
    -3: ("DataInconsistency", f"{_SEE_LOG}, and restore its data from the others"),
    -4: ("ConnectionLoss", _SEE_LOG),
    -5: ("MarshallingError", f"{_REPORT}, unless a proxy has changed it"),
    -6: ("UnimplementedError", "locks need ZooKeeper 3.6, or another server with container nodes"),
    -7: ("OperationTimeoutError", "it took the servers too long; look at their load, disks and network"),
    -8: ("BadArgumentsError", _REPORT),
    -12: ("UnknownSessionError", "the server does not know the session; see its log"),
    -13: ("NewConfigNoQuorumError", _RECONFIGURED),
    -14: ("ReconfigInProcessError", _RECONFIGURED),
    -100: ("APIError", _REPORT),
    -102: (
        "NoAuthError",
        'the credentials in ZKLOCK["AUTH"] may not do this; check them, and the ACL of {path}',
    ),
    -108: (
        "NoChildrenForEphemeralsError",
        "{path} is ephemeral, so another program made it; delete it, or set ROOT",
    ),
    -113: ("InvalidCallbackError", _REPORT),
    -114: ("InvalidACLError", 'ZooKeeper does not know a scheme or an id in ZKLOCK["ACL"]; correct it'),
    -115: ("AuthFailedError", CREDENTIALS),
    -119: ("NotReadOnlyCallError", "the server is in no quorum and only reads; start the other servers"),
    -120: ("EphemeralOnLocalSessionError", "set localSessionsUpgradingEnabled=true on the servers"),
    -121: ("NoWatcherError", _REPORT),
    -123: ("ReconfigDisabledError", "set reconfigEnabled=true on the servers"),
    -124: ("SessionClosedRequireSaslError", REQUIRES_AUTHENTICATION),
    -125: ("QuotaExceededError", "the quota at or above {path} is used up; raise it by setquota"),
    -127: ("ThrottledOpError", "the server throttles its clients; lower its load, or raise its limits"),
}
"""The name in kazoo and the meaning of each code. The errors that locks handle by themselves are not here."""


def meaning(code: int, path: str = "", right: str = "") -> str:
    """
    Return an error of ZooKeeper with its meaning and remedy.

    The ACL of the znode at `path` decides about the request, which needs this right.
    """
    name, text = MEANINGS.get(code, _UNKNOWN)
    if right:
        text = text.replace("the ACL of", f'the right "{right}" in the ACL of')
    return f"{name} ({code}: {text.format(path=path or 'the znodes')})"
