"""Locks over TLS and behind credentials, on a server that asks for them; nothing secret in any log."""

import multiprocessing
import os
import signal

import pytest
from django.test import override_settings
from support.certificates import expired, make_pki, serving_tls, skip_without_tls
from support.ensemble import free_ports
from support.faults import acquire_once
from support.locking import ending
from support.texts import assert_shows
from support.work import assert_refused

from django_zklock import zk_lock
from django_zklock.exceptions import ZooKeeperUnavailable
from django_zklock.management.exit_codes import ExitCode


@pytest.fixture(scope="module")
def pki(tmp_path_factory):
    return make_pki(tmp_path_factory.getbasetemp() / "pki")


@pytest.fixture(scope="module")
def secure(pki):
    skip_without_tls()
    with serving_tls(pki["CA"], pki["CA"].with_name("both.pem")) as zoo:
        yield zoo


@pytest.mark.parametrize(
    "end", [lambda: os._exit(0), lambda: os.kill(os.getpid(), signal.SIGKILL)], ids=["os._exit", "killed"]
)
def test_a_release_over_tls_arrives_although_the_process_ends(secure, pki, end):
    """OpenSSL keeps nothing back: what is sent is in the socket when the block ends."""

    def work():
        acquire_once("child")
        end()

    with secure.configured(TLS=pki):
        for _ in range(int(os.environ.get("ZKLOCK_EXITS", "1"))):
            child = multiprocessing.get_context("fork").Process(target=work)
            child.start()
            child.join(30)
            acquire_once("child", timeout=8)


def test_greenlets_have_locks_over_tls(secure, pki):
    """The sockets for TLS are of a class of gevent. Several greenlets send at the same time."""
    pytest.importorskip("gevent")
    settings = secure.settings(TLS={name: str(path) for name, path in pki.items()})
    script = f"""
import gevent
from django.test import override_settings
def work(number):
    for _ in range(20):
        with zk_lock(f"tls/{{number % 2}}", timeout=10):
            pass
    return number
with override_settings(ZKLOCK={settings!r}):
    greenlets = [gevent.spawn(work, number) for number in range(4)]
    print([greenlet.get() for greenlet in greenlets])
"""
    assert secure.output(script, first="from gevent import monkey; monkey.patch_all()") == ["[0, 1, 2, 3]"]


def test_an_unknown_authority_or_host_name_is_refused(secure, pki, tmp_path):
    named, by_address = secure.hosts, secure.hosts.replace("localhost", "127.0.0.1")
    other = make_pki(tmp_path / "other")
    invalid = "its TLS certificate is not valid here"
    for hosts, options, cause in (
        (named, {**pki, "CA": other["CA"]}, invalid),
        (by_address, pki, invalid),
        (named, None, "it closes connections without an answer; it has no quorum, or expects TLS"),
    ):
        with (
            secure.configured(hosts, TLS=options),
            pytest.raises(ZooKeeperUnavailable, match=cause),
            zk_lock("a", timeout=0.5),
        ):
            pass


def expired_of(pki, folder):
    authority = pki["CA"]
    expired(authority.parent, "old", "ca")
    return {"CA": authority, "CERT": authority.with_name("old.pem"), "KEY": authority.with_name("old.key")}


@pytest.mark.parametrize(
    "own",
    [
        expired_of,
        lambda pki, folder: {**make_pki(folder / "other"), "CA": pki["CA"]},
        lambda pki, folder: {"CA": pki["CA"]},
    ],
    ids=["expired", "of another authority", "missing"],
)
def test_a_server_that_refuses_our_certificate_is_not_down(secure, pki, tmp_path, own):
    with secure.configured(TLS={name: str(path) for name, path in own(pki, tmp_path).items()}):
        remedy = "set or renew CERT"
        assert_refused(zk_lock("a", timeout=2), ZooKeeperUnavailable, remedy)
        status, printed, _ = ending("status")
        assert status == ExitCode.UNAVAILABLE
        assert printed.startswith("1. This process has no access to ZooKeeper. No connection to ZooKeeper")
        assert_shows(printed, remedy, hides=["Start the servers", "No answer from", "does not answer"])
        assert "does not answer" not in ending("doctor")[1]


def test_refused_credentials_are_no_outage(zoo):
    """The servers answer the command `srvr` meanwhile."""
    with zoo.configured(AUTH=[("nothing", "user:password")]):
        status, printed, _ = ending("status")
    assert status == ExitCode.UNAVAILABLE
    assert 'it refuses the credentials in ZKLOCK["AUTH"]; correct them' in printed
    assert "Start the servers" not in printed


def test_a_password_in_the_url_works_and_shows_in_no_error(zoo):
    zoo.use_own_client().add_auth("digest", "shop:s3cr3t/word")
    url = zoo.url().replace("zk://", "zk://shop:s3cr3t%2Fword@")
    with override_settings(ZKLOCK={"URL": url}), zk_lock("in-url") as hold:
        acls = zoo.client.get_acls(hold.path)[0]
        assert [acl.id.scheme for acl in acls] == ["digest"]
        assert acls[0].id.id.startswith("shop:")
    (port,) = free_ports(1)
    with (
        override_settings(ZKLOCK={"URL": url.replace(zoo.hosts, f"127.0.0.1:{port}")}),
        pytest.raises(ZooKeeperUnavailable) as caught,
        zk_lock("in-url", timeout=0),
    ):
        pass
    assert "s3cr3t" not in str(caught.value)
