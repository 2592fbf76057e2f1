"""`manage.py zklock limit`, `request-release`, `break`, `hold` and `end-hold`."""

import io
import json
import logging
import os
import socket
from datetime import datetime, timezone

import pytest
from support import forked
from support.databases import database, sqlite
from support.faults import BackgroundCall, acquire_once, acquired_by_many
from support.locking import MANAGE, as_json, ending, zklock
from support.quietevents import RECORD
from support.zoo import guid_of

from django_zklock import zk_lock
from django_zklock.contrib.events.models import Event
from django_zklock.exceptions import LockBusy, LockLost
from django_zklock.management.exit_codes import ExitCode
from django_zklock.operations import clear_limit

WHY = "--reason=the printer is slow"


@pytest.fixture(autouse=True)
def cleared(zoo):
    yield
    clear_limit("k", by="anna", reason="the test is over")


def test_a_limit_is_shown_set_and_cleared(zoo):
    assert "No limit is set" in zklock("limit", "k")
    assert as_json("limit", "k") == {"key": "k", "limit_set": None}
    assert "Limit 2, set by " in zklock("limit", "k", 2, WHY)
    data = as_json("limit", "k")["limit_set"]
    assert (data["limit"], data["reason"]) == (2, "the printer is slow")
    assert data["when"].startswith("20")
    assert "Limit 2, set by " in ending("show", "k")[2]
    assert as_json("limit", "k", 3, WHY)["limit_set"]["limit"] == 3
    assert "is cleared" in zklock("limit", "k", "--clear", WHY)
    assert "No limit is set" in zklock("limit", "k", "--clear", WHY)


@pytest.mark.parametrize("wrong", [["3"], ["--clear"], ["3", "--clear", WHY], ["0", WHY], ["10001", WHY]])
def test_an_invalid_limit_changes_nothing(zoo, wrong):
    assert ending("limit", "k", *wrong)[0] == ExitCode.USAGE
    assert as_json("limit", "k")["limit_set"] is None


def test_a_release_is_requested_of_all_holders_or_of_one(zoo):
    with acquired_by_many("k", 3, 3, limit=3) as holds:
        holder = as_json("show", "k")["holders"][1]
        (asked,) = as_json("request-release", "k", WHY, "--guid", holder["guid"])["holders"]
        assert asked["token"] == holder["token"]
        (named,) = [hold for hold in holds if str(hold.token) == holder["token"]]
        assert named.wait_release_requested(10)
        assert sum(hold.release_requested is not None for hold in holds) == 1
        assert "was asked to release by" in zklock("show", "k")
        assert zklock("request-release", "k", WHY).count("Asked: ") == 3
        assert all(hold.wait_release_requested(10) for hold in holds)


def test_a_request_needs_a_reason_and_a_holder_that_is_there(zoo):
    assert ending("request-release", "k", WHY)[0] == ExitCode.NO_HOLDER
    with zk_lock("k") as hold:
        assert ending("request-release", "k")[0] == ExitCode.USAGE
        assert ending("request-release", "k", WHY, "--token=1")[0] == ExitCode.CHANGED
        assert ending("request-release", "k", WHY, "--guid=7")[0] == ExitCode.CHANGED
        assert hold.release_requested is None


def test_an_action_goes_to_the_handlers_of_the_project(zoo, capsys):
    handler = logging.StreamHandler(written := io.StringIO())
    logger = logging.getLogger("zklock.audit")
    logger.addHandler(handler)
    assert zklock("limit", "k", 2, WHY).count("the printer is slow") == 1
    logger.removeHandler(handler)
    assert written.getvalue().count("the printer is slow") == 1
    assert capsys.readouterr().err == ""


def test_a_command_adds_to_the_table_of_events(zoo, tmp_path, django_db_blocker):
    settings = sqlite(tmp_path / "events.sqlite3")
    env = {**zoo.environment(), RECORD: "600", "TEST_DATABASES": json.dumps({"default": settings})}
    with django_db_blocker.unblock(), database(settings, Event) as alias:
        done = forked.run([*MANAGE[1:], "limit", "k", "2", WHY], env=env, timeout=50)
        (row,) = Event._default_manager.using(alias).all()
    assert (row.key, row.outcome) == ("k", Event.ACTION)
    assert_shows(f"{row.work} {row.by}", "2", "(command)")
    assert row.reason == "the printer is slow"
    assert done.stdout.count("the printer is slow") == 1
    assert done.stderr == ""


def test_a_broken_lock_goes_to_the_next_waiter(zoo, monkeypatch, caplog, capsys):
    monkeypatch.setattr("sys.stdin", io.StringIO("yes\n"))
    lock = zk_lock("k")
    hold = lock.acquire()
    assert hold is not None

    def wait():
        acquire_once("k", timeout=30)

    waiter = BackgroundCall(wait)
    zoo.wait_contenders("k", 2)
    with caplog.at_level(logging.INFO, "zklock.audit"):
        assert "Broken" in zklock("break", "k", WHY)
    assert hold.wait_lost(20)
    waiter.result()
    with pytest.raises(LockLost):
        lock.release()
    asked = capsys.readouterr().err
    assert str(hold.token) in asked
    assert f"Next is {socket.gethostname()} · pid {os.getpid()}" in asked
    (record,) = [record for record in caplog.records if record.name == "zklock.audit"]
    assert "the printer is slow" in record.getMessage()


@pytest.mark.parametrize("typed", ["no\n", "", "y\n"])
def test_without_a_yes_nothing_is_broken(zoo, monkeypatch, typed):
    monkeypatch.setattr("sys.stdin", io.StringIO(typed))
    with zk_lock("k") as hold:
        status, _, message = ending("break", "k", WHY)
        assert (status, message) == (ExitCode.FAILED, "Nothing was changed.")
        hold.check()


def test_a_break_without_confirmation_needs_a_reason_and_the_present_holder(zoo):
    with zk_lock("k") as hold:
        assert ending("break", "k", WHY, "--no-input")[0] == ExitCode.USAGE
        assert ending("break", "k", "--no-input", f"--token={hold.token}")[0] == ExitCode.USAGE
        assert ending("break", "k", WHY, "--no-input", f"--token={hold.token - 1}")[0] == ExitCode.CHANGED
        assert ending("break", "k", WHY, "--no-input", "--guid=7")[0] == ExitCode.CHANGED
        hold.check()
    assert ending("break", "k", WHY, "--no-input", f"--token={hold.token}")[0] == ExitCode.NO_HOLDER


def test_the_holder_is_broken_by_its_guid_or_its_token(zoo):
    with zoo.hold_elsewhere("k") as path:
        assert "no longer holds k" in zklock("break", "k", WHY, "--no-input", "--guid", guid_of(path))
        assert zoo.client.exists(path) is None
    with zoo.hold_elsewhere("k") as path:
        token = zoo.client.exists(path).czxid
        done = as_json("break", "k", WHY, "--no-input", f"--token={token}")
        assert (done["key"], done["holder"]["token"], done["reason"]) == ("k", str(token), "the printer is slow")
        assert zoo.client.exists(path) is None


def test_a_hold_keeps_the_lock_until_it_is_ended(zoo):
    held = as_json("hold", "k", "--for=10m", WHY)
    assert held["reason"] == "the printer is slow"
    left = datetime.fromisoformat(held["until"]) - datetime.now(timezone.utc)
    assert 500 < left.total_seconds() < 700
    with pytest.raises(LockBusy, match="the printer is slow"), zk_lock("k", timeout=0):
        pass
    assert "the printer is slow" in zklock("list")
    assert as_json("show", "k")["holders"][0]["operator"]["token"] == held["token"]
    assert ending("hold", "k", "--for=1m", WHY)[0] == ExitCode.BUSY
    assert "has ended" in zklock("end-hold", "k")
    with zk_lock("k", timeout=30):
        assert ending("end-hold", "k")[0] == ExitCode.NO_HOLDER


@pytest.mark.parametrize("options", [["--for=1m"], ["--for=1m", "--reason= "], ["--for=8d", WHY], ["--for=0", WHY]])
def test_an_invalid_hold_is_refused(zoo, options):
    assert ending("hold", "k", *options)[0] == ExitCode.USAGE
    assert not zoo.contenders()
