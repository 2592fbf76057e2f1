"""The system checks report problems of `settings.ZKLOCK`, and warn of unwise values."""

from __future__ import annotations

import re

import pytest
from django.core import checks as django_checks
from django.core.management import call_command
from django.core.management.base import SystemCheckError
from django.test import override_settings

from django_zklock import conf, zk_locked

IDS = re.compile(r"zklock\.[EW]\d{3}")


def run(raw: object, *, deploy: bool = False) -> list[django_checks.CheckMessage]:
    with override_settings(ZKLOCK=raw):
        messages = django_checks.run_checks(tags=["zklock"], include_deployment_checks=deploy)
    assert all(IDS.fullmatch(str(message.id)) for message in messages)
    return messages


def ids(raw: object, *, deploy: bool = False) -> list[str]:
    return sorted(str(message.id) for message in run(raw, deploy=deploy))


def test_every_problem_becomes_an_error() -> None:
    raw = {"URL": "zk://h:port", "ROOTS": "/x", "ACL": "none", "LOCKS": {"a": {}}}
    assert [(message.id, message.msg, message.hint) for message in run(raw)] == [
        (f"zklock.{problem.id}", problem.message, problem.hint) for problem in conf.problems(raw)
    ]
    assert ids(raw) == ["zklock.E002", "zklock.E003", "zklock.E007", "zklock.E010"]


def test_checks_fail_the_command() -> None:
    with override_settings(ZKLOCK=None), pytest.raises(SystemCheckError, match=r"zklock\.E001"):
        call_command("check")


def test_sensible_settings_cause_no_message() -> None:
    assert run({"URL": "zk+tls://zk1.example.org/app", "AUTH": "user:pw"}, deploy=True) == []
    assert run({"URL": "zk://localhost,127.0.0.1,[::1]/app"}, deploy=True) == []


@pytest.mark.parametrize(("keys", "more"), [({}, ["zklock.W010"]), ({"AUTH": "user:pw"}, [])])
def test_plain_text_to_another_machine_causes_a_warning(keys: dict[str, str], more: list[str]) -> None:
    """With `--deploy`, only TLS or a loopback address is accepted: credentials do not guard a session."""
    raw = {"URL": "zk://127.0.0.1,10.0.0.1/app", **keys}
    assert ids(raw, deploy=True) == ["zklock.W001", *more]
    assert ids(raw) == []


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, ["W010"]),
        ({"AUTH": "user:pw", "ACL": "open"}, ["W010"]),
        ({"AUTH": "user:pw", "ACL": [("world", "anyone", "crwda")]}, ["W010"]),
        ({"AUTH": "user:pw", "ACL": [("digest", "user:hash", "crwda"), ("world", "anyone", "d")]}, ["W010"]),
        ({"AUTH": "user:pw", "ACL": [("digest", "user:hash", "crwda"), ("world", "anyone", "r")]}, []),
        ({"ACL": [("ip", "10.0.0.0/8", "crwda")]}, []),
        ({"ACL": [("ip", "0.0.0.0/0", "crwda")]}, ["W010"]),
        ({"ACL": [("ip", "::/0", "d")]}, ["W010"]),
        ({"ACL": [("ip", "0.0.0.0/0", "r"), ("digest", "user:hash", "crwda")]}, []),
        ({"TLS": {"CHECK_HOSTNAME": False}, "AUTH": "user:pw"}, ["W011"]),
        ({"TLS": {"CHECK_HOSTNAME": False}}, ["W010", "W011"]),
    ],
)
def test_an_open_acl_and_unchecked_names_cause_a_warning(keys: dict[str, object], expected: list[str]) -> None:
    """TLS alone does not ask who connects."""
    raw = {"URL": "zk+tls://zk1.example.org/app", **keys}
    assert ids(raw, deploy=True) == [f"zklock.{name}" for name in expected]


def test_an_open_acl_is_no_risk_on_this_machine_alone() -> None:
    assert ids({"URL": "zk+tls://localhost/app", "TLS": {"CHECK_HOSTNAME": False}}, deploy=True) == []
    assert ids({"URL": "zk+tls://zk1.example.org/app", "TLS": {"CHECK_HOSTNAME": False}}) == []


@pytest.mark.parametrize(("acl", "warned"), [({}, True), ({"ACL": "open"}, True), ({"ACL": "creator"}, False)])
def test_a_client_certificate_alone_does_not_close_the_acl(acl: dict[str, str], warned: bool) -> None:
    """Each client that ZooKeeper accepts may change the znodes, until they name the certificate of their creator."""
    raw = {"URL": "zk+tls://zk1.example.org/app", "TLS": {"CERT": "c", "KEY": "k"}, **acl}
    hints = [message.hint or "" for message in run(raw, deploy=True) if message.id == "zklock.W010"]
    assert ["an open ACL lets all of its authority in" in hint for hint in hints] == [True] * warned


@pytest.mark.parametrize(("seconds", "expected"), [(5.9, ["zklock.W002"]), (6, [])])
def test_a_short_session_timeout_causes_a_warning(seconds: float, expected: list[str]) -> None:
    """An ordinary pause of a process may outlast the lease."""
    assert ids({"URL": "zk://localhost/app", "SESSION_TIMEOUT": seconds}) == expected


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ({"URL": "zk://localhost"}, ["zklock.W003"]),
        ({"URL": "zk://localhost", "ROOT": "/app"}, []),
        ({"URL": "zk://localhost/app"}, []),
    ],
)
def test_a_root_that_projects_share_causes_a_warning(raw: dict[str, str], expected: list[str]) -> None:
    """Two projects with default settings would share every name."""
    assert ids(raw, deploy=True) == expected
    assert ids(raw) == []


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ({"DEFAULTS": {"limit": 3, "kind": "read"}}, 'ZKLOCK["DEFAULTS"] has limit=3 and kind="read"'),
        ({"LOCKS": {"a": {"path": "a", "limit": 3, "kind": "write"}}}, 'ZKLOCK["LOCKS"]["a"] has limit=3 and kind="wr'),
        ({"LOCKS": {"a": {"path": "a", "compat": "kazoo", "min_hold": 1}}}, "other clients do not know"),
        (
            {"DEFAULTS": {"compat": "kazoo"}, "LOCKS": {"a": {"path": "a", "limit": 3}}},
            "semaphores cannot share a queue with other clients",
        ),
        (
            {"DEFAULTS": {"max_hold": 5}, "LOCKS": {"a": {"path": "a", "min_hold": 9}}},
            'max_hold=5, which is less than min_hold=9, one of them from ZKLOCK["DEFAULTS"].',
        ),
        ({"LOCKS": {"a": {"path": "a", "linger": 2, "limit": 3}}}, "linger=2 and limit=3, but only exclusive locks"),
        ({"LOCKS": {"a": {"path": "a", "linger": 2, "kind": "read"}}}, 'linger=2 and kind="read", but only exclusive'),
        (
            {"DEFAULTS": {"linger": 0.5}, "LOCKS": {"a": {"path": "a", "min_hold": 9}}},
            "linger=0.5 and min_hold, which keeps the lock from the next owners in this process, too",
        ),
    ],
)
def test_options_that_exclude_each_other_are_errors(raw: dict[str, object], expected: str) -> None:
    (message,) = run({"URL": "zk://localhost/app", **raw})
    assert message.id == "zklock.E013"
    assert expected in message.msg


def test_an_entry_may_override_a_default() -> None:
    defaults = {"limit": 3, "max_hold": 5}
    locks = {"a": {"path": "a", "kind": "read"}, "b": {"path": "b", "max_hold": None, "min_hold": 9}}
    assert run({"URL": "zk://localhost/app", "DEFAULTS": defaults, "LOCKS": locks}) == []
    defaults = {"linger": 2}
    locks = {
        "a": {"path": "a", "kind": "read", "linger": 0},
        "b": {"path": "b", "kind": "write"},
        "c": {"path": "c", "linger": 0, "limit": 2},
    }
    assert run({"URL": "zk://localhost/app", "DEFAULTS": defaults, "LOCKS": locks}) == []


def test_two_limits_of_a_path_cause_a_warning() -> None:
    """Each entry would use its own limit."""
    locks = {"a": {"path": "x", "limit": 2}, "b": {"path": "x", "limit": 3}, "c": {"path": "x"}, "d": {"path": "y"}}
    (message,) = run({"URL": "zk://localhost/app", "LOCKS": locks})
    assert message.id == "zklock.W007"
    assert 'ZKLOCK["LOCKS"]["b"] and ZKLOCK["LOCKS"]["a"]' in message.msg
    assert run({"URL": "zk://localhost/app", "LOCKS": {**locks, "b": {"path": "x", "limit": 2}}}) == []


def test_a_decorator_refuses_options_that_exclude_each_other() -> None:
    with pytest.raises(ValueError, match="a semaphore has no sides"):
        zk_locked("a", kind="read", limit=3)
    settings = {"URL": "zk://localhost/app", "LOCKS": {"a": {"path": "a", "limit": 3}}}
    with override_settings(ZKLOCK=settings):
        with pytest.raises(ValueError, match=r"The lock 'a' has limit=3 and kind=\"read\".* limit=None"):
            zk_locked("a", kind="read")(lambda: None)
        zk_locked("a", kind="read", limit=None)(lambda: None)


def test_warnings_wait_until_the_errors_are_gone() -> None:
    assert ids({"URL": "zk://10.0.0.1", "SESSION_TIMEOUT": 1, "ROOT": "x"}, deploy=True) == ["zklock.E004"]


@pytest.mark.parametrize(("raw", "deploy"), [({}, False), ({"URL": "zk://10.0.0.1", "SESSION_TIMEOUT": 1}, True)])
def test_every_message_has_a_hint(raw: dict[str, object], deploy: bool) -> None:
    assert all(message.hint for message in run(raw, deploy=deploy))
