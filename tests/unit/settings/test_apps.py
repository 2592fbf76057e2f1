"""The wiring of settings, checks and session when Django starts."""

from __future__ import annotations

from django.test import override_settings

from django_zklock import conf, zk_lock
from django_zklock.apps import session_options
from django_zklock.core.zk.options import SessionOptions, TlsOptions


def test_changed_settings_are_seen() -> None:
    before = conf.current()
    lock = zk_lock("a")
    spec = lock.spec
    assert lock.spec is spec
    with override_settings(SECRET_KEY="other"):
        assert conf.current() is before
    with override_settings(ZKLOCK={"URL": "zk://h/other"}):
        assert conf.current().base == "/other/zklock"
        assert lock.spec.parent == "/other/zklock/a"
        assert session_options().tls is None
    assert conf.current() == before
    assert lock.spec == spec


def test_session_gets_all_that_the_settings_say() -> None:
    raw = {
        "URL": "zk+tls://user:pw@h1,[::1]:2182/app?session_timeout=9&connect_timeout=2",
        "TLS": {"CA": "ca", "CERT": "cert", "KEY": "key", "KEY_PASSWORD": "pw", "CHECK_HOSTNAME": False},
    }
    with override_settings(ZKLOCK=raw):
        assert session_options() == SessionOptions(
            hosts=(("h1", 2181), ("::1", 2182)),
            base="/app/zklock",
            session_timeout=9.0,
            connect_timeout=2.0,
            auth=(("digest", "user:pw"),),
            acl="creator",
            tls=TlsOptions(ca="ca", cert="cert", key="key", key_password="pw", check_hostname=False),
        )
