"""`manage.py zklock limit` and `request-release`, and the other subcommands on shared locks."""

from __future__ import annotations

import io
import json
import logging
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from pytest_django import DjangoDbBlocker
from support.databases import database, sqlite
from support.faults import acquired_by_many
from support.locking import MANAGE, as_json, ending, zklock
from support.quietevents import RECORD
from support.zoo import Zoo

from django_zklock.contrib.events.models import OperatorAction
from django_zklock.management.exit_codes import ExitCode
from django_zklock.operations import clear_limit

pytestmark = pytest.mark.zookeeper

WHY = "--reason=the printer is slow"


@pytest.fixture(autouse=True)
def cleared(zoo: Zoo) -> Iterator[None]:
    yield
    clear_limit("k", by="anna", reason="the test is over")


def test_a_limit_is_shown_set_and_cleared(zoo: Zoo) -> None:
    """With the user and the reason. No contender is needed."""
    assert "No limit is set" in zklock("limit", "k")
    assert as_json("limit", "k") == {"key": "k", "limit_set": None}
    assert "Limit 2, set by " in zklock("limit", "k", 2, WHY)
    data = as_json("limit", "k")["limit_set"]
    assert (data["limit"], data["reason"]) == (2, "the printer is slow")
    assert data["by"]
    assert data["when"].startswith("20")
    assert "Limit 2, set by " in ending("show", "k")[2]
    assert as_json("limit", "k", 3, WHY)["limit_set"]["limit"] == 3
    assert "is cleared" in zklock("limit", "k", "--clear", WHY)
    assert "No limit is set" in zklock("limit", "k", "--clear", WHY)


@pytest.mark.parametrize("wrong", [["3"], ["--clear"], ["3", "--clear", WHY], ["0", WHY], ["10001", WHY]])
def test_an_invalid_limit_changes_nothing(zoo: Zoo, wrong: list[str]) -> None:
    """Nor does one without a reason."""
    assert ending("limit", "k", *wrong)[0] == ExitCode.USAGE
    assert as_json("limit", "k")["limit_set"] is None


def test_a_release_is_requested_of_all_holders_or_of_one(zoo: Zoo) -> None:
    with acquired_by_many("k", 3, 3, limit=3) as holds:
        holders = as_json("show", "k")["holders"]
        assert [holder["kind"] for holder in holders] == ["semaphore"] * 3
        (asked,) = as_json("request-release", "k", WHY, "--guid", holders[1]["guid"])["holders"]
        assert (asked["guid"], asked["token"]) == (holders[1]["guid"], holders[1]["token"])
        (named,) = [hold for hold in holds if str(hold.token) == holders[1]["token"]]
        request = named.wait_release_requested(10)
        assert request
        assert sum(hold.release_requested is not None for hold in holds) == 1
        assert "was asked to release by" in zklock("show", "k")
        assert zklock("request-release", "k", WHY).count("Asked: ") == 3
        assert all(hold.wait_release_requested(10) for hold in holds)
        assert not any(hold.lost for hold in holds)


def test_a_request_without_a_holder_fails(zoo: Zoo) -> None:
    """The exit code tells whether the lock is free or has another holder."""
    assert ending("request-release", "k", WHY)[0] == ExitCode.NO_HOLDER
    with acquired_by_many("k", 1, 1):
        assert ending("request-release", "k")[0] == ExitCode.USAGE
        assert ending("request-release", "k", WHY, "--token=1")[0] == ExitCode.CHANGED
        assert ending("request-release", "k", WHY, "--guid=7")[0] == ExitCode.CHANGED


def test_an_action_goes_to_the_handlers_of_the_project(zoo: Zoo, capsys: pytest.CaptureFixture[str]) -> None:
    handler = logging.StreamHandler(written := io.StringIO())
    logger = logging.getLogger("zklock.audit")
    logger.addHandler(handler)
    assert zklock("limit", "k", 2, WHY).count("the printer is slow") == 1
    logger.removeHandler(handler)
    assert written.getvalue().count("the printer is slow") == 1
    assert capsys.readouterr().err == ""


def test_a_command_adds_its_action_to_the_table_of_events(
    zoo: Zoo, tmp_path: Path, django_db_blocker: DjangoDbBlocker
) -> None:
    """The process writes it before it exits. Without `LOGGING`, its audit record is not on standard error."""
    settings = sqlite(tmp_path / "events.sqlite3")
    env = {**zoo.environment(), RECORD: "600", "TEST_DATABASES": json.dumps({"default": settings})}
    with django_db_blocker.unblock(), database(settings, OperatorAction) as alias:
        done = subprocess.run([*MANAGE, "limit", "k", "2", WHY], env=env, capture_output=True, text=True, check=True)
        (row,) = OperatorAction._default_manager.using(alias).all()
    assert (row.key, row.what, row.via, row.limit) == ("k", "limit set", "command", 2)
    assert row.reason == "the printer is slow"
    assert done.stdout.count("the printer is slow") == 1
    assert done.stderr == ""
