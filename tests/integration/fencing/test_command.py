"""`manage.py zklock fences`: the fenced rows, and those whose tokens are ahead of ZooKeeper."""

from __future__ import annotations

import getpass
import io
import json
import logging
import socket
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.test import override_settings
from support.ensemble import free_ports
from support.ledgers.models import Account, Savings, Vault
from support.locking import ending
from support.zoo import Zoo

from django_zklock import zk_lock
from django_zklock.contrib.fences.models import Fence
from django_zklock.management.exit_codes import ExitCode

pytestmark = pytest.mark.zookeeper

FAR = 10**12  # more transactions than any test has
WHY = "--reason=restored from Monday's snapshot"


def fences(*arguments: str) -> str:
    out = io.StringIO()
    call_command("zklock", "fences", *arguments, stdout=out)
    return out.getvalue()


def as_json(*arguments: str) -> dict[str, dict[str, Any]]:
    return {table["model"]: table for table in json.loads(fences("--json", *arguments))["tables"]}


@pytest.fixture
def rows(zoo: Zoo, ledger: str) -> list[Account]:
    """One row of this history and two of another one, in a table that two models share."""
    with zk_lock("k") as hold:
        now = Account(name="now", fencing_token=hold.token)
        ahead = Account(name="ahead", fencing_token=FAR)
        child = Savings(name="child", fencing_token=FAR + 1)
        for row in (now, ahead, child):
            row.save(using=ledger)
        Fence(name="books", token=FAR).save(using=ledger, force_insert=True)
        Vault(label="v").save_fenced(hold, using=ledger)
    return [now, ahead, child]


def tokens(using: str) -> list[int]:
    return list(Account.objects.using(using).order_by("pk").values_list("fencing_token", flat=True))


def test_every_table_is_listed_once(ledger: str, rows: list[Account]) -> None:
    """The tokens of a child model are in the table of its parent. A database without the tables is left out."""
    tables = as_json(f"--database={ledger}")
    assert set(tables) == {"ledgers.Account", "ledgers.Vault", "zklock_fences.Fence"}
    accounts = tables["ledgers.Account"]
    assert accounts == {"database": ledger, "model": "ledgers.Account", "rows": 3, "highest": str(FAR + 1), "ahead": 2}
    assert (tables["ledgers.Vault"]["ahead"], tables["zklock_fences.Fence"]["ahead"]) == (0, 1)


def test_the_list_says_what_to_do(ledger: str, rows: list[Account]) -> None:
    text = fences(f"--database={ledger}")
    assert text.startswith("ZooKeeper's last transaction id is ")
    assert "--reset" in text
    (line,) = [line for line in text.splitlines() if "ledgers.Account" in line]
    assert line.split() == [ledger, "ledgers.Account", "3", str(FAR + 1), "2"]


def test_a_reset_sets_tokens_that_are_ahead_to_0_and_is_audited(
    ledger: str, rows: list[Account], caplog: pytest.LogCaptureFixture
) -> None:
    """Tokens of this history stay. Holders can write again."""
    with caplog.at_level(logging.INFO, "zklock.audit"):
        text = fences("--reset", "--no-input", WHY, f"--database={ledger}")
    assert "2 rows of ledgers.Account" in text
    assert tokens(ledger) == [rows[0].fencing_token, 0, 0]
    assert Fence.objects.using(ledger).get().token == 0
    (record,) = [record for record in caplog.records if record.__dict__["model"] == "ledgers.Account"]
    assert record.name == "zklock.audit"
    message = record.getMessage()
    for part in ("2 rows", ledger, getpass.getuser(), socket.gethostname(), "restored from Monday's snapshot"):
        assert part in message
    with zk_lock("k") as hold:
        rows[1].save_fenced(hold)
    assert "nothing to reset" in fences("--reset", "--no-input", WHY, f"--database={ledger}")


def test_one_model_can_be_reset_alone(ledger: str, rows: list[Account]) -> None:
    done = as_json("--reset", "--no-input", WHY, f"--database={ledger}", "--model=zklock_fences.Fence")
    assert done["zklock_fences.Fence"]["reset"] == 1
    assert tokens(ledger)[1:] == [FAR, FAR + 1]


@pytest.mark.parametrize("answer", ["no", "", None])
def test_without_a_yes_nothing_is_changed(
    ledger: str, rows: list[Account], monkeypatch: pytest.MonkeyPatch, answer: str | None
) -> None:
    """The command asks first, and explains."""
    monkeypatch.setattr("sys.stdin", io.StringIO("" if answer is None else answer + "\n"))
    with pytest.raises(CommandError, match="Nothing was changed"):
        fences("--reset", WHY, f"--database={ledger}")
    assert tokens(ledger)[1:] == [FAR, FAR + 1]
    monkeypatch.setattr("sys.stdin", io.StringIO("yes\n"))
    fences("--reset", WHY, f"--database={ledger}")
    assert tokens(ledger)[1:] == [0, 0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--reset", "--no-input"], "--reason"),
        (["--reset", "--no-input", "--reason= "], "--reason"),
        (["--model=ledgers.Bank"], "has no tokens.*ledgers.Account"),
        (["--model=ledgers.Nothing"], "no model"),
        (["--model=nonsense"], "no model"),
        (["--database=nowhere"], "no database 'nowhere'"),
    ],
)
def test_what_makes_no_sense_is_refused(zoo: Zoo, ledger: str, arguments: list[str], message: str) -> None:
    with pytest.raises(CommandError, match=message):
        fences(*arguments)


def test_without_zookeeper_nothing_is_reset(zoo: Zoo, ledger: str, rows: list[Account]) -> None:
    """The list is shown nevertheless."""
    (port,) = free_ports(1)
    with override_settings(ZKLOCK={"URL": f"zk://127.0.0.1:{port}/x?connect_timeout=0.2"}):
        assert as_json(f"--database={ledger}")["ledgers.Account"]["ahead"] is None
        assert "does not answer" in fences(f"--database={ledger}")
        with pytest.raises(CommandError, match="does not answer"):
            fences("--reset", "--no-input", WHY, f"--database={ledger}")
    assert tokens(ledger)[1:] == [FAR, FAR + 1]


def test_the_doctor_finds_rows_that_holders_cannot_write(ledger: str, rows: list[Account]) -> None:
    """It names the command, and finds nothing after it."""
    status, text, _ = ending("doctor")
    lines = [line for line in text.splitlines() if " fences " in line]
    assert status == ExitCode.FAILED
    assert len(lines) == 2, text
    assert all(line.startswith("error") and "zklock fences --reset" in line and ledger in line for line in lines)
    assert any("ledgers.Account" in line and "2 rows" in line for line in lines)
    assert any("zklock_fences.Fence" in line and "1 rows" in line for line in lines)
    fences("--reset", "--no-input", WHY, f"--database={ledger}")
    status, text, _ = ending("doctor")
    assert (status, "none of them ahead" in text) == (ExitCode.OK, True), text
