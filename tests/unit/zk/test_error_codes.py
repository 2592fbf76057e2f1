"""Each error of ZooKeeper and of TLS says what was refused, and the remedy."""

import re
import shutil
import ssl
import subprocess

import pytest
from kazoo import exceptions as kazoo
from kazoo.protocol.serialization import CheckVersion, Create2, Delete, GetChildren, GetData, SetData, Transaction
from support.ensemble import ZooKeeperNotFound, find_classpath

from django_zklock.core.zk.codes import MEANINGS, meaning
from django_zklock.core.zk.errors import (
    INTERRUPTED,
    NodeExists,
    NodeMissing,
    NotEmpty,
    Outdated,
    RequestRefused,
    translate,
)
from django_zklock.core.zk.outage import NO_TLS, SILENT, Refusal, cause_of

HANDLED = {-101: NodeMissing, -110: NodeExists, -111: NotEmpty, -103: Outdated}
"""Locks handle these. No user sees them."""
LOST = {-112, -118, -122}
"""After these, the session continues on another connection, or ends. The text is that of the connection."""
OF_ZOOKEEPER = {
    *range(-8, 0),
    *range(-14, -11),
    *(-100, -101, -102, -103, -108, -110, -111, -112, -113, -114, -115, -118, -119, -120, -121, -122, -123, -124),
    *(-125, -127),
}
"""KeeperException.Code of ZooKeeper 3.8 and 3.9."""
AT = "/base/orders/7"
NAMES_SETTING = {-102, -114, -115, -124}


def test_the_list_has_all_codes_of_kazoo_and_of_zookeeper():
    assert set(kazoo.EXCEPTIONS) - {0} <= OF_ZOOKEEPER
    javap = shutil.which("javap")
    try:
        jars = ":".join(map(str, find_classpath()))
    except ZooKeeperNotFound:
        return
    if javap is not None:
        command = [javap, "-constants", "-cp", jars, "org.apache.zookeeper.KeeperException$CodeDeprecated"]
        shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        assert {int(code) for code in re.findall(r"= (-[0-9]+);", shown)} <= OF_ZOOKEEPER


@pytest.mark.parametrize("code", sorted(OF_ZOOKEEPER - HANDLED.keys() - LOST))
def test_each_code_has_a_meaning_and_a_remedy(code):
    text = meaning(code, AT)
    assert text.startswith(f"{kazoo.EXCEPTIONS[code].__name__} ({code}: ")
    assert MEANINGS[code][1].format(path=AT) in text
    assert "{" not in text
    assert ("ZKLOCK" in text) is (code in NAMES_SETTING)


@pytest.mark.parametrize("code", sorted(HANDLED.keys() | LOST))
def test_a_code_that_locks_handle_has_no_text(code):
    error = translate(kazoo.EXCEPTIONS[code](), GetData(AT, None))
    assert code not in MEANINGS
    assert error.code == 0
    assert isinstance(error, HANDLED.get(code, INTERRUPTED))


def test_a_code_that_nobody_knows_is_named_with_the_remedy():
    for request in (GetData(AT, None), SetData(AT, b"", -1)):
        error = translate(kazoo.SystemZookeeperError(), request, -200)
        assert error.code == -200
    assert "unknown error (-200: this release does not know the code; see the server's log" in meaning(-200)


@pytest.mark.parametrize(
    ("request_", "what", "acl"),
    [
        (Create2(f"{AT}/x", b"", [], 0), f"create2 of {AT}/x", AT),
        (Delete(f"{AT}/x", -1), f"delete of {AT}/x", AT),
        (Create2("/x", b"", [], 0), "create2 of /x", "/"),
        (SetData(AT, b"", -1), f"setData of {AT}", AT),
        (GetChildren(AT, None), f"getChildren of {AT}", AT),
        (CheckVersion(AT, -1), f"checkVersion of {AT}", AT),
        (Transaction([]), "multi", "the znodes"),
    ],
)
def test_a_refusal_names_the_request_its_znode_and_the_acl_that_decides(request_, what, acl):
    error = translate(kazoo.NoAuthError(), request_)
    assert isinstance(error, RequestRefused)
    assert str(error).startswith(f"ZooKeeper refused the request {what}: NoAuthError (-102: ")
    assert str(error).endswith(f"the ACL of {acl}).")


# --- TLS --------------------------------------------------------------------------------------------------------------


def openssl_error(reason):
    error = ssl.SSLError(1, f"[SSL: {reason}] {reason.lower().replace('_', ' ')} (_ssl.c:1006)")
    error.reason = reason
    return error


@pytest.mark.parametrize("in_handshake", [True, False], ids=["TLS 1.2", "TLS 1.3"])
def test_each_alert_of_a_server_is_told_with_the_remedies(in_handshake):
    """In TLS 1.3, the alert about our certificate comes after the handshake, where a plain port cannot be meant."""
    for alert in ssl.AlertDescription.__members__:
        name = alert.removeprefix("ALERT_DESCRIPTION_")
        cause = cause_of(openssl_error(f"TLSV1_ALERT_{name}"), in_handshake=in_handshake, connected=True)
        assert isinstance(cause, Refusal), "none of them is an outage, to which one starts servers"
        assert cause.startswith("TLS failed: ")
        assert name.lower().replace("_", " ") in cause
        assert 'set or renew CERT in ZKLOCK["TLS"]' in cause


def test_a_certificate_of_a_server_that_is_not_valid_is_told_with_the_remedies():
    error = ssl.SSLCertVerificationError(1, "certificate verify failed")
    error.reason, error.verify_message = "CERTIFICATE_VERIFY_FAILED", "certificate has expired"
    cause = cause_of(error, in_handshake=True, connected=False)
    assert isinstance(cause, Refusal)
    assert cause.startswith("its TLS certificate is not valid here: certificate has expired; renew it")


def test_a_server_that_is_silent_in_the_handshake_is_not_taken_for_one_without_tls():
    late = TimeoutError("_ssl.c:985: The handshake operation timed out")
    assert cause_of(late, in_handshake=True, connected=False) == SILENT
    assert cause_of(ConnectionResetError(104, "reset"), in_handshake=True, connected=False) == NO_TLS
