"""No error has a secret in the locals of its frames, which error reporters send and debug pages show."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.core.management import call_command
from django.http import HttpRequest, HttpResponse
from django.test import override_settings
from support.certificates import NEW_KEY, openssl
from support.frames import frames_with
from support.tokens import MemoryTokens

from django_zklock import conf, zk_adopt
from django_zklock.conf.leases import LeaseClient, LeaseOptions
from django_zklock.contrib.leases.access import Access, hash_of
from django_zklock.contrib.leases.http import HttpApplication
from django_zklock.core.zk.options import Secret, TlsOptions
from django_zklock.fencing import FenceVerifier, require_fence

MARK = "MARKEDSECRET"
LONG = MARK * 4


def verifier(*keys: str) -> FenceVerifier:
    return FenceVerifier(MemoryTokens(), keys=list(keys) or None)


def view(request: HttpRequest) -> HttpResponse:
    raise AssertionError


def raw(**more: Any) -> dict[str, Any]:
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
CALLS: dict[str, tuple[dict[str, Any], Callable[[], object]]] = {
    "forged": (raw(TOKEN_KEYS=[LONG]), lambda: verifier().verify("forged:token", key="k")),
    "too long": (raw(TOKEN_KEYS=[LONG]), lambda: verifier().verify("x" * 9999, key="k")),
    "surrogate": (raw(TOKEN_KEYS=[LONG]), lambda: verifier().verify("\ud800:x", key="k")),
    "in a coroutine": ({}, lambda: asyncio.run(verifier(LONG).averify("forged:token", key="k"))),
    "keys given": ({}, lambda: verifier(LONG).verify("forged:token", key="k")),
    "keys given with another error": ({}, lambda: FenceVerifier(MemoryTokens(), keys=[LONG], leeway=-1)),
    "wrong keys given": ({}, lambda: verifier(MARK)),
    "wrong keys of a view": ({}, lambda: require_fence("k", keys=[MARK])(view)),
    "wrong name of a view": ({}, lambda: require_fence(5, keys=[LONG])(view)),  # type: ignore[arg-type]
    "SECRET_KEY": ({"SECRET_KEY": LONG, **raw()}, lambda: verifier().verify("forged:token", key="k")),
    "fallback": ({"SECRET_KEY_FALLBACKS": [LONG], **raw()}, lambda: verifier().verify("forged:token", key="k")),
    "hand-over": ({"SECRET_KEY": LONG, **raw()}, lambda: zk_adopt("zkh2.forged.text")),
    **{f"settings, {name}": (settings, conf.current) for name, settings in IN_SETTINGS.items()},
    **{f"check, {name}": (settings, lambda: call_command("check")) for name, settings in IN_SETTINGS.items()},
}


@pytest.mark.parametrize("name", CALLS)
def test_no_frame_shows_a_key_or_a_password(name: str) -> None:
    settings, call = CALLS[name]
    conf.forget()
    with override_settings(**settings), pytest.raises(Exception) as caught:  # noqa: PT011 - all of them
        call()
    assert frames_with(caught.value, MARK) == []


def test_the_configuration_hides_its_secrets_one_by_one() -> None:
    """Code that is called with one of them may fail, too."""
    conf.forget()
    tls = {"KEY_PASSWORD": MARK, "CERT": "c", "KEY": "k"}
    with override_settings(**raw(URL=f"zk+tls://u:{MARK}@h/x", TLS=tls)):
        config = conf.current()
    assert config.tls is not None
    assert config.auth == (("digest", f"u:{MARK}"),)
    assert MARK not in repr((config.auth, config.tls.key_password, conf.token_keys()))


def test_a_wrong_password_of_a_key_is_not_shown(tmp_path: Path) -> None:
    key, certificate = str(tmp_path / "k"), str(tmp_path / "c")
    made = ("-keyout", key, "-out", certificate, "-subj", "/CN=a", "-passout", "pass:right")
    openssl("req", "-x509", *NEW_KEY, *made)
    with pytest.raises(OSError, match="KEY_PASSWORD is wrong") as caught:
        TlsOptions(cert=certificate, key=key, key_password=Secret(MARK)).context()
    assert frames_with(caught.value, MARK) == []


def test_the_coordinator_does_not_show_the_token_of_a_client() -> None:
    client = LeaseClient(name="billing", tokens=(hash_of(MARK),), max_rate=0)
    access = Access(LeaseOptions(clients={"billing": client}))
    for token in (MARK, f"{MARK}?"):
        headers = [(b"authorization", f"Bearer {token}".encode())]
        scope = {"headers": headers, "method": "GET", "path": "/locks/1", "state": {"certificate_names": []}}
        application: Any = HttpApplication(None, access)  # type: ignore[arg-type]
        with pytest.raises(Exception, match=r"Slow down|Send the header") as caught:
            async_to_sync(application._answer)(scope, None)
        assert frames_with(caught.value, MARK) == []
