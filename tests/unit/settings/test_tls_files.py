"""Files of TLS that are missing or wrong: the error names the file and the setting, and nobody is asked."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from django.core import checks
from django.test import override_settings
from support.certificates import authority, certificate, openssl, skip_without_tls

from django_zklock import zk_lock
from django_zklock.core.zk import process
from django_zklock.core.zk.options import TlsOptions, TlsProblem
from django_zklock.exceptions import ZooKeeperUnavailable
from django_zklock.inspection import ensemble

#: What is wrong: the files by setting, the setting that the error names, its words, and whether it is absent only.
WRONG = {
    "no authority": ({"CA": "none.pem"}, "CA", "no such file or directory", True),
    "a folder": ({"CA": "."}, "CA", "is a directory", True),
    "authority is a key": ({"CA": "a.key"}, "CA", "it has no certificate", False),
    "authority is empty": ({"CA": "empty.pem"}, "CA", "it has no certificate", False),
    "no certificate": ({"CERT": "none.pem", "KEY": "a.key"}, "CERT", "no such file or directory", True),
    "certificate is text": ({"CERT": "text.pem", "KEY": "a.key"}, "CERT", "it has no certificate", False),
    "no key": ({"CERT": "a.pem", "KEY": "none.key"}, "KEY", "no such file or directory", True),
    "key is text": ({"CERT": "a.pem", "KEY": "text.pem"}, "KEY", "it is damaged", False),
    "no key in the certificate": ({"CERT": "a.pem"}, "KEY", "it is damaged", False),
    "another key": ({"CERT": "a.pem", "KEY": "b.key"}, "KEY", "it is not the key of CERT", False),
    "no password": ({"CERT": "a.pem", "KEY": "locked.key"}, "KEY", "KEY_PASSWORD is missing", False),
    "an empty password": (
        {"CERT": "a.pem", "KEY": "locked.key", "KEY_PASSWORD": ""},
        "KEY",
        "KEY_PASSWORD is missing",
        False,
    ),
    "wrong password": (
        {"CERT": "a.pem", "KEY": "locked.key", "KEY_PASSWORD": "no"},
        "KEY",
        "KEY_PASSWORD is wrong",
        False,
    ),
    "long password": ({"CERT": "a.pem", "KEY": "locked.key", "KEY_PASSWORD": "x" * 2000}, "KEY", "1024", False),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
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


def settings(folder: Path, files: dict[str, str]) -> dict[str, Any]:
    return {name: value if name == "KEY_PASSWORD" else str(folder / value) for name, value in files.items()}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_file_is_named_with_its_setting(folder: Path, wrong: str) -> None:
    files, setting, words, absent = WRONG[wrong]
    given = settings(folder, files)
    with pytest.raises(TlsProblem) as raised:
        TlsOptions(**{name.lower(): value for name, value in given.items()}).context()
    text = f'{setting} in ZKLOCK["TLS"] is {given.get(setting, given.get("CERT"))}: '
    assert str(raised.value).startswith(text)
    assert words in str(raised.value)
    with override_settings(ZKLOCK={"URL": "zk+tls://localhost/test", "TLS": given}):
        [message] = checks.run_checks(tags=["zklock"])
    assert message.id == ("zklock.W008" if absent else "zklock.E008")
    assert message.msg == f"{raised.value}."


def test_a_file_that_hangs_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a file server that is away: by `check`, the caller of a lock, and the report of the servers."""
    ca = tmp_path / "ca.pem"
    os.mkfifo(ca)
    monkeypatch.setattr("django_zklock.checks.CHECK_TIME", 0.1)
    with override_settings(ZKLOCK={"URL": "zk+tls://127.0.0.1:1/test", "TLS": {"CA": str(ca)}}):
        [message] = checks.run_checks(tags=["zklock"])
        assert message.id == "zklock.W008"
        with pytest.raises(ZooKeeperUnavailable) as raised, zk_lock("a", timeout=1):
            raise AssertionError("nothing is granted")
        [report] = ensemble(max_age=0).servers
        process.reset()
    ca.open("w").close()  # ends the thread that reads it
    for text in (message.msg, str(raised.value), report.problem):
        assert f"reading hangs: {ca}" in text


@pytest.mark.parametrize("password", [None, "secret"])
def test_right_files_are_used_and_nobody_is_asked(
    folder: Path, password: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    files = {"CA": "ca.pem", "CERT": "a.pem", "KEY": "locked.key" if password else "a.key"}
    given = settings(folder, {**files, **({"KEY_PASSWORD": password} if password else {})})
    with override_settings(ZKLOCK={"URL": "zk+tls://localhost/test", "TLS": given}):
        assert checks.run_checks(tags=["zklock"]) == []
