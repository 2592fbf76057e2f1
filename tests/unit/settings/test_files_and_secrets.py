"""Files of TLS that are wrong are named, and no error shows a secret in the locals of its frames."""

import asyncio
import sys

import pytest
from asgiref.sync import async_to_sync
from django.core.management import call_command
from django.test import override_settings
from support.certificates import NEW_KEY, authority, certificate, openssl, skip_without_tls
from support.frames import frames_with
from support.tokens import MemoryTokens

from django_zklock import conf
from django_zklock.contrib.leases.access import Access, hash_of
from django_zklock.contrib.leases.options import LeaseClient, LeaseOptions
from django_zklock.contrib.leases.refusal import Refusal
from django_zklock.contrib.tokens import FenceVerifier, require_fence
from django_zklock.contrib.tokens.keys import token_keys
from django_zklock.core.zk.options import Secret, TlsOptions, TlsProblem

MARK = "MARKEDSECRET"
LONG = MARK * 4


def verifier(*keys):
    return FenceVerifier(MemoryTokens(), keys=list(keys) or None)


def view(request):
    raise AssertionError


def raw(**more):
    return {"ZKLOCK": {"URL": "zk://127.0.0.1:1/x", **more}}


IN_SETTINGS = {"wrong keys": raw(TOKEN_KEYS=[MARK]), "no list": raw(TOKEN_KEYS=MARK)} | {
    f"wrong {name}": raw(**{name: value})
    for name, value in {
        "URL": f"zk://u:{MARK}",
        "AUTH": [("digest", MARK)],
        "ACL": [(MARK,)],
        "TLS": {"KEY_PASSWORD": MARK, "CERT": 5},
        "LEASES": {"CLIENTS": {"billing": {"TOKENS": [MARK]}}},
        "ROOT": {"AUTH": MARK},
    }.items()
}
CALLS = {
    "forged": (raw(TOKEN_KEYS=[LONG]), lambda: verifier().verify("forged:token", key="k")),
    "too long": (raw(TOKEN_KEYS=[LONG]), lambda: verifier().verify("x" * 9999, key="k")),
    "surrogate": (raw(TOKEN_KEYS=[LONG]), lambda: verifier().verify("\ud800:x", key="k")),
    "in a coroutine": ({}, lambda: asyncio.run(verifier(LONG).averify("forged:token", key="k"))),
    "keys given": ({}, lambda: verifier(LONG).verify("forged:token", key="k")),
    "keys given with another error": ({}, lambda: FenceVerifier(MemoryTokens(), keys=[LONG], leeway=-1)),
    "wrong keys given": ({}, lambda: verifier(MARK)),
    "wrong keys of a view": ({}, lambda: require_fence("k", keys=[MARK])(view)),
    "wrong name of a view": ({}, lambda: require_fence(5, keys=[LONG])(view)),
    "SECRET_KEY": ({"SECRET_KEY": LONG, **raw()}, lambda: verifier().verify("forged:token", key="k")),
    "fallback": ({"SECRET_KEY_FALLBACKS": [LONG], **raw()}, lambda: verifier().verify("forged:token", key="k")),
    **{f"settings, {name}": (settings, conf.current) for name, settings in IN_SETTINGS.items()},
    **{f"check, {name}": (settings, lambda: call_command("check")) for name, settings in IN_SETTINGS.items()},
}


@pytest.mark.parametrize("name", CALLS)
def test_no_frame_shows_a_key_or_a_password(name):
    settings, call = CALLS[name]
    conf.forget()
    with override_settings(**settings), pytest.raises(Exception) as caught:  # noqa: PT011 - all of them
        call()
    assert frames_with(caught.value, MARK) == []


def test_the_configuration_hides_its_secrets_one_by_one():
    """Code that is called with one of them may fail, too."""
    conf.forget()
    tls = {"KEY_PASSWORD": MARK, "CERT": "c", "KEY": "k"}
    with override_settings(**raw(URL=f"zk+tls://u:{MARK}@h/x", TLS=tls)):
        config = conf.current()
    assert config.auth == (("digest", f"u:{MARK}"),)
    assert MARK not in repr((config.auth, config.tls.key_password, token_keys()))


def test_a_wrong_password_of_a_key_is_not_shown(tmp_path):
    key, certificate = str(tmp_path / "k"), str(tmp_path / "c")
    made = ("-keyout", key, "-out", certificate, "-subj", "/CN=a", "-passout", "pass:right")
    openssl("req", "-x509", *NEW_KEY, *made)
    with pytest.raises(OSError, match="KEY_PASSWORD is wrong") as caught:
        TlsOptions(cert=certificate, key=key, key_password=Secret(MARK)).context()
    assert frames_with(caught.value, MARK) == []


def test_the_coordinator_does_not_show_the_token_of_a_client():
    access = Access(LeaseOptions(clients={"billing": LeaseClient(name="billing", tokens=(hash_of("another"),))}))
    with pytest.raises(Refusal, match="Send the header") as caught:
        async_to_sync(access.client)("127.0.0.1", Secret(f"Bearer {MARK}"))
    assert frames_with(caught.value, MARK) == []


# --- files of TLS -----------------------------------------------------------------------------------------------------


#: What is wrong: the files by setting, the setting that the error names, and its words.
WRONG = {
    "no authority": ({"CA": "none.pem"}, "CA", "no such file or directory"),
    "a folder": ({"CA": "."}, "CA", "is a directory"),
    "authority is a key": ({"CA": "a.key"}, "CA", "it has no certificate"),
    "authority is empty": ({"CA": "empty.pem"}, "CA", "it has no certificate"),
    "no certificate": ({"CERT": "none.pem", "KEY": "a.key"}, "CERT", "no such file or directory"),
    "certificate is text": ({"CERT": "text.pem", "KEY": "a.key"}, "CERT", "it has no certificate"),
    "no key": ({"CERT": "a.pem", "KEY": "none.key"}, "KEY", "no such file or directory"),
    "key is text": ({"CERT": "a.pem", "KEY": "text.pem"}, "KEY", "it is damaged"),
    "no key in the certificate": ({"CERT": "a.pem"}, "KEY", "it is damaged"),
    "another key": ({"CERT": "a.pem", "KEY": "b.key"}, "KEY", "it is not the key of CERT"),
    "no password": ({"CERT": "a.pem", "KEY": "locked.key"}, "KEY", "KEY_PASSWORD is missing"),
    "an empty password": (
        {"CERT": "a.pem", "KEY": "locked.key", "KEY_PASSWORD": ""},
        "KEY",
        "KEY_PASSWORD is missing",
    ),
    "wrong password": (
        {"CERT": "a.pem", "KEY": "locked.key", "KEY_PASSWORD": "no"},
        "KEY",
        "KEY_PASSWORD is wrong",
    ),
    "long password": ({"CERT": "a.pem", "KEY": "locked.key", "KEY_PASSWORD": "x" * 2000}, "KEY", "1024"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """An authority `ca`, certificates `a` and `b` with keys, the key of `a` encrypted, and what is none of it."""
    skip_without_tls()
    folder = tmp_path_factory.mktemp("tls")
    authority(folder, "ca")
    for name in "ab":
        certificate(folder, name, "ca")
    openssl("pkey", "-aes256", "-in", f"{folder}/a.key", "-out", f"{folder}/locked.key", "-passout", "pass:secret")
    (folder / "empty.pem").touch()
    (folder / "text.pem").write_text("no certificate")
    return folder


def settings(folder, files):
    return {name: value if name == "KEY_PASSWORD" else str(folder / value) for name, value in files.items()}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_file_is_named_with_its_setting(folder, wrong):
    files, setting, words = WRONG[wrong]
    given = settings(folder, files)
    with pytest.raises(TlsProblem) as raised:
        TlsOptions(**{name.lower(): value for name, value in given.items()}).context()
    text = f'{setting} in ZKLOCK["TLS"] is {given.get(setting, given.get("CERT"))}: '
    assert str(raised.value).startswith(text)
    assert words in str(raised.value)


@pytest.mark.parametrize("password", [None, "secret"])
def test_right_files_are_used_and_nobody_is_asked(folder, password, monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    files = {"CA": "ca.pem", "CERT": "a.pem", "KEY": "locked.key" if password else "a.key"}
    given = settings(folder, {**files, **({"KEY_PASSWORD": password} if password else {})})
    assert TlsOptions(**{name.lower(): value for name, value in given.items()}).context()
