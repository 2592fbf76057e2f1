"""`manage.py zklock limit`, `request-release`, `break`, `hold` and `end-hold`."""

import json
import logging
from datetime import UTC, datetime

import pytest
from support.faults import BackgroundCall, acquire_once, acquired_by_many
from support.locking import as_json, ending, zklock

from django_zklock import zk_lock
from django_zklock.exceptions import LockBusy, LockLost
from django_zklock.management.exit_codes import ExitCode
from django_zklock.operations import clear_limit

WHY = "--reason=the printer is slow"


@pytest.fixture(autouse=True)
def cleared(zoo):
    yield
    clear_limit("k", by="anna", reason="the test is over")


def limit_of_k():
    return json.loads(ending("show", "k", "--json")[1])["limit_set"]


def test_a_limit_is_set_shown_and_cleared(zoo):
    assert "Limit set to 2." in zklock("limit", "k", 2, WHY)
    assert (limit_of_k()["limit"], limit_of_k()["reason"]) == (2, "the printer is slow")
    assert limit_of_k()["when"].startswith("20")
    assert "Limit 2, set by " in ending("show", "k")[2]
    (action,) = as_json("limit", "k", 3, WHY)["actions"]
    assert (action["action"], action["reason"], action["token"]) == ("Limit set to 3", "the printer is slow", None)
    assert "Limit cleared." in zklock("limit", "k", "none", WHY)
    assert limit_of_k() is None


@pytest.mark.parametrize("wrong", [["3"], ["none"], [WHY], ["0", WHY], ["10001", WHY], ["x", WHY]])
def test_an_invalid_limit_changes_nothing(zoo, wrong):
    assert ending("limit", "k", *wrong)[0] == ExitCode.USAGE
    assert limit_of_k() is None


def test_a_release_is_requested_of_all_holders_or_of_one(zoo):
    with acquired_by_many("k", 3, 3, limit=3) as holds:
        holder = as_json("show", "k")["holders"][1]
        (asked,) = as_json("request-release", "k", WHY, "--token", holder["token"])["actions"]
        assert asked["token"] == holder["token"]
        (named,) = [hold for hold in holds if str(hold.token) == holder["token"]]
        assert named.wait_release_requested(10)
        assert sum(hold.release_requested is not None for hold in holds) == 1
        assert "was asked to release by" in zklock("show", "k")
        assert zklock("request-release", "k", WHY).count("Release requested of ") == 3
        assert all(hold.wait_release_requested(10) for hold in holds)


def test_a_request_needs_a_reason_and_a_holder_that_is_there(zoo):
    assert ending("request-release", "k", WHY)[0] == ExitCode.NO_HOLDER
    with zk_lock("k") as hold:
        assert ending("request-release", "k")[0] == ExitCode.USAGE
        assert ending("request-release", "k", WHY, "--token=1")[0] == ExitCode.CHANGED
        assert hold.release_requested is None


def test_a_broken_lock_goes_to_the_next_waiter(zoo, caplog):
    lock = zk_lock("k")
    hold = lock.acquire()
    assert hold is not None

    def wait():
        acquire_once("k", timeout=30)

    waiter = BackgroundCall(wait)
    zoo.wait_contenders("k", 2)
    with caplog.at_level(logging.INFO, "zklock.audit"):
        done = as_json("break", "k", WHY, f"--token={hold.token}")
    assert (done["key"], done["actions"][0]["token"]) == ("k", str(hold.token))
    assert hold.wait_lost(20)
    waiter.result()
    with pytest.raises(LockLost):
        lock.release()
    (record,) = [record for record in caplog.records if record.name == "zklock.audit"]
    assert "the printer is slow" in record.getMessage()


@pytest.mark.parametrize(
    ("wrong", "status"),
    [([WHY], ExitCode.USAGE), (["--token=7"], ExitCode.USAGE), ([WHY, "--token=7"], ExitCode.CHANGED)],
)
def test_a_break_needs_a_reason_and_the_token_of_a_holder(zoo, wrong, status):
    with zk_lock("k") as hold:
        ended, _, message = ending("break", "k", *wrong)
        hold.check()
    assert ended == status
    assert (f"token {hold.token}" in message) is (status == ExitCode.CHANGED), "the message has the present holders"


def test_a_lock_without_a_holder_cannot_be_broken(zoo):
    assert ending("break", "k", WHY, "--token=7")[0] == ExitCode.NO_HOLDER


def test_a_hold_keeps_the_lock_until_it_is_ended(zoo):
    (held,) = as_json("hold", "k", "--for=10m", WHY)["actions"]
    assert held["reason"] == "the printer is slow"
    left = datetime.fromisoformat(as_json("show", "k")["holders"][0]["operator"]["until"]) - datetime.now(UTC)
    assert 500 < left.total_seconds() < 700
    with pytest.raises(LockBusy, match="the printer is slow"), zk_lock("k", timeout=0):
        pass
    assert "the printer is slow" in zklock("list")
    assert as_json("show", "k")["holders"][0]["operator"]["token"] == held["token"]
    assert ending("hold", "k", "--for=1m", WHY)[0] == ExitCode.BUSY
    end = ("end-hold", "k", WHY, f"--token={held['token']}")
    assert "Ended the hold of " in zklock(*end)
    assert ending(*end)[0] == ExitCode.NO_HOLDER
    with zk_lock("k", timeout=30):
        assert ending(*end)[0] == ExitCode.CHANGED


@pytest.mark.parametrize("options", [["--for=1m"], ["--for=1m", "--reason= "], ["--for=8d", WHY], ["--for=0", WHY]])
def test_an_invalid_hold_is_refused(zoo, options):
    assert ending("hold", "k", *options)[0] == ExitCode.USAGE
    assert not zoo.contenders()
