"""`manage.py zklock break`, `hold` and `end-hold`."""

from __future__ import annotations

import io
import logging
import os
import socket
from datetime import datetime, timezone

import pytest
from support.faults import BackgroundCall
from support.locking import as_json, ending, zklock
from support.zoo import Zoo

from django_zklock import zk_lock
from django_zklock.exceptions import LockBusy, LockLost
from django_zklock.management.exit_codes import ExitCode

pytestmark = pytest.mark.zookeeper

WHY = "--reason=the deploy hangs"


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """Replace the standard input by a text, which the test fills."""
    typed = io.StringIO()
    monkeypatch.setattr("sys.stdin", typed)
    return typed


def test_a_broken_lock_goes_to_the_next_waiter(
    zoo: Zoo, answer: io.StringIO, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    """It asks first, and names the holder, its work and the next waiter. The audit log has the reason."""
    answer.write("yes\n")
    answer.seek(0)
    lock = zk_lock("k")
    hold = lock.acquire()
    assert hold is not None

    def wait() -> None:
        with zk_lock("k", timeout=30):
            pass

    waiter = BackgroundCall(wait)
    zoo.wait_contenders("k", 2)
    with caplog.at_level(logging.INFO, "zklock.audit"):
        assert "Broken" in zklock("break", "k", WHY)
    assert hold.wait_lost(5)
    waiter.result()
    with pytest.raises(LockLost):
        lock.release()
    asked = capsys.readouterr().err
    assert str(hold.token) in asked
    assert f"Next is {socket.gethostname()} · pid {os.getpid()}" in asked
    (record,) = [record for record in caplog.records if record.name == "zklock.audit"]
    assert "the deploy hangs" in record.getMessage()


@pytest.mark.parametrize("typed", ["no\n", "", "y\n"])
def test_without_a_yes_nothing_is_broken(zoo: Zoo, answer: io.StringIO, typed: str) -> None:
    answer.write(typed)
    answer.seek(0)
    with zk_lock("k") as hold:
        status, _, message = ending("break", "k", WHY)
        assert (status, message) == (ExitCode.FAILED, "Nothing was changed.")
        hold.check()


def test_a_break_without_confirmation_needs_the_token(zoo: Zoo) -> None:
    """The lock of another holder is not broken. A reason is required, too."""
    with zk_lock("k") as hold:
        assert ending("break", "k", WHY, "--no-input")[0] == ExitCode.USAGE
        assert ending("break", "k", "--no-input", f"--token={hold.token}")[0] == ExitCode.USAGE
        assert ending("break", "k", WHY, "--no-input", f"--token={hold.token - 1}")[0] == ExitCode.CHANGED
        hold.check()
    assert ending("break", "k", WHY, "--no-input", f"--token={hold.token}")[0] == ExitCode.NO_HOLDER
    with zoo.hold_elsewhere("k") as path:
        token = zoo.client.exists(path).czxid
        done = as_json("break", "k", WHY, "--no-input", f"--token={token}")
        assert (done["key"], done["holder"]["token"], done["reason"]) == ("k", str(token), "the deploy hangs")
        assert zoo.client.exists(path) is None


def test_a_hold_keeps_the_lock_until_it_is_ended(zoo: Zoo) -> None:
    """A caller that tries to acquire the lock is told the operator and the reason."""
    held = as_json("hold", "k", "--for=10m", WHY)
    assert held["reason"] == "the deploy hangs"
    left = datetime.fromisoformat(held["until"]) - datetime.now(timezone.utc)
    assert 500 < left.total_seconds() < 700
    with pytest.raises(LockBusy, match="the deploy hangs"), zk_lock("k", timeout=0):
        pass
    assert "the deploy hangs" in zklock("list")
    assert as_json("show", "k")["holders"][0]["operator"]["token"] == held["token"]
    assert ending("hold", "k", "--for=1m", WHY)[0] == ExitCode.BUSY
    assert "has ended" in zklock("end-hold", "k")
    with zk_lock("k", timeout=30):
        assert ending("end-hold", "k")[0] == ExitCode.NO_HOLDER


@pytest.mark.parametrize("options", [["--for=1m"], ["--for=1m", "--reason= "], ["--for=8d", WHY], ["--for=0", WHY]])
def test_an_invalid_hold_is_refused(zoo: Zoo, options: list[str]) -> None:
    """It needs a reason, and an end within a week."""
    assert ending("hold", "k", *options)[0] == ExitCode.USAGE
    assert not zoo.contenders()
