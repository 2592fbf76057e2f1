"""Eight incidents of a night: the first cards of the page, and the first lines of the doctor, name cause and remedy."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.test import Client, override_settings
from support.adminsite import user_with
from support.ensemble import free_ports
from support.zoo import Zoo

from django_zklock import inspection, operations
from django_zklock.admin import LockAdmin
from django_zklock.dashboard import past
from django_zklock.management.exit_codes import ExitCode
from django_zklock.queue import nodes
from django_zklock.queue.nodes import Payload

pytestmark = [pytest.mark.zookeeper, pytest.mark.django_db]

LIST = "/admin/zklock/lock/"
Contend = Callable[..., str]


@pytest.fixture
def operator() -> Client:
    return user_with("view_lock", "break_lock", "hold_lock", "limit_lock", "request_release_lock")


@pytest.fixture
def contend(zoo: Zoo, monkeypatch: pytest.MonkeyPatch) -> Iterator[Contend]:
    """Have contenders of processes that are not there; a hold counts as long from its first moment."""
    paths: list[str] = []
    monkeypatch.setattr(LockAdmin, "long_held", 0.0)
    monkeypatch.setattr(past, "LONG_HELD", 0.0)

    def join(key: str, host: str = "worker-1", pid: int = 77, **more: Any) -> str:
        guid = f"aaaaaaaa-0000-4000-8000-{len(paths):012}"
        fields = {"thread": "MainThread", "what": "shop.tasks.charge", "since": "", **more}
        payload = Payload(guid=guid, template=key, host=host, pid=pid, **fields)
        path = f"{zoo.base}/{key}/{nodes.prefix(guid)}"
        paths.append(zoo.client.create(path, payload.encode(), ephemeral=True, sequence=True, makepath=True))
        return paths[-1]

    yield join
    for path in paths:
        if zoo.client.exists(path):
            zoo.client.delete(path)


def doctor(*arguments: str) -> tuple[str, int]:
    """Return what `zklock doctor --incident` prints, and its exit status."""
    out = StringIO()
    try:
        call_command("zklock", "doctor", "--incident", *arguments, stdout=out)
    except CommandError as error:
        return out.getvalue(), error.returncode
    return out.getvalue(), 0


def assert_named(operator: Client, cause: str, status: int, *texts: str) -> None:
    """Fail unless the first two cards, and the first 25 lines of the doctor, have these texts."""
    inspection.snapshot(max_age=0, max_waiters=1)
    cards = operator.get(LIST).context["cards"][:2]
    shown = " ".join(f"{card['title']} {card['explanation']} {card['remedy']}" for card in cards)
    assert cards[0]["info"].cause == cause
    printed, returned = doctor()
    first_lines = "\n".join(printed.splitlines()[:25])
    for text in texts:
        assert text in shown
        assert text in first_lines
    assert returned == status


def test_a_dead_host_with_fifty_locks_is_one_card(operator: Client, contend: Contend) -> None:
    for number in range(50):
        contend(f"orders/{number:03}")
    contend("orders/000", "worker-2", 5)
    assert_named(operator, "host", ExitCode.HOST, "worker-1", "with 50 locks", "If it hangs, break them.")
    assert len(operator.get(LIST).context["cards"]) == 1


def test_a_slow_task_can_be_asked_or_broken(operator: Client, contend: Contend) -> None:
    contend("orders/1")
    contend("orders/1", "worker-2", 5)
    assert_named(operator, "hung", ExitCode.HUNG, "worker-1", "orders/1", "Request release (work finishes)")
    assert "zklock break orders/1 --token" in doctor()[0]
    assert "break/?key=orders%2F1" in operator.get(LIST).content.decode()


def test_a_deadlock_of_two_tasks_names_both_victims(operator: Client, contend: Contend, zoo: Zoo) -> None:
    contend("a", "worker-1", 1, owner=1)
    contend("b", "worker-2", 2, owner=2)
    contend("b", "worker-1", 1, owner=1)
    contend("a", "worker-2", 2, owner=2)
    assert_named(operator, "deadlock", ExitCode.DEADLOCK, "Deadlock: a, b", "Break one of them")
    page = operator.get(LIST).content.decode()
    assert "break/?key=a" in page
    assert "break/?key=b" in page
    listed = operator.get(f"{LIST}?q=").content.decode()
    assert listed.count("zklock-deadlocked") == 2


def test_a_lost_quorum_says_what_to_start(operator: Client) -> None:
    (port,) = free_ports(1)
    with override_settings(ZKLOCK={"URL": f"zk://127.0.0.1:{port}/app"}):
        cards = operator.get(LIST).context["cards"]
        assert cards[0]["info"].cause == "quorum"
        assert "Start the servers" in cards[0]["remedy"]
        printed, status = doctor("--reply-timeout=0.5")
        assert status == ExitCode.UNAVAILABLE
        assert "Start the servers" in "\n".join(printed.splitlines()[:25])


def test_a_flapping_session_is_named(operator: Client, zoo: Zoo, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = inspection.PastFacts(losses={"web-77": 3})
    monkeypatch.setattr(past, "_facts", lambda: facts)
    assert_named(operator, "flapping", ExitCode.FLAPPING, "web-77 has lost 3 locks", "Look at its network")


def test_a_foreign_client_that_blocks_others_is_named(operator: Client, contend: Contend, zoo: Zoo) -> None:
    path = zoo.client.create(
        f"{zoo.base}/x/{nodes.prefix('bbbbbbbb-0000-4000-8000-000000000001')}",
        b"other",
        ephemeral=True,
        sequence=True,
        makepath=True,
    )
    contend("x")
    assert_named(operator, "foreign", ExitCode.FOREIGN, "blocks x", "End its program, or break the lock.")
    zoo.client.delete(path)


def test_a_worn_out_counter_says_how_to_reset_it(operator: Client, zoo: Zoo) -> None:
    path = f"{zoo.base}/orders/9/{nodes.prefix('aaaaaaaa-0000-4000-8000-000000000001')}-000000005"
    zoo.client.create(path, ephemeral=True, makepath=True)
    assert_named(operator, "counter", ExitCode.COUNTER, "orders/9", "delete the empty directory")
    zoo.client.delete(path)


def test_a_forgotten_hold_names_the_operator_and_how_to_end_it(operator: Client, contend: Contend) -> None:
    hold = operations.hold_lock("stock", seconds=600, reason="maintenance", by="alice")
    contend("stock")
    assert_named(operator, "operator", ExitCode.OPERATOR, "stock", "alice", "maintenance", "end this hold")
    assert "zklock end-hold stock" in doctor()[0]
    operations.end_hold("stock", token=hold.token, by="alice", reason="done")


def test_calm_is_one_green_sentence(operator: Client, zoo: Zoo) -> None:
    assert "Nothing needs attention." in operator.get(LIST).content.decode()
    assert doctor() == ("Nothing needs attention: 0 locks.\n", 0)
    assert json.loads(doctor("--json")[0]) == {"healthy": True, "incidents": []}
