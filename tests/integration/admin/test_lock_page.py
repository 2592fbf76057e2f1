"""The page of one lock: what helps comes first, equal rows are one, and rare facts are folded."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from django.test import Client
from support.adminsite import user_with
from support.browser.actors import Part, Stage, staged
from support.zoo import Zoo

from django_zklock.core.queue.nodes import Kind

pytestmark = [pytest.mark.zookeeper, pytest.mark.django_db]

LIST = "/admin/zklock/lock/"


@pytest.fixture
def stage(zoo: Zoo) -> Iterator[Stage]:
    with staged(zoo) as stage:
        yield stage


@pytest.fixture
def operator() -> Client:
    return user_with("view_lock", "break_lock", "hold_lock", "limit_lock", "request_release_lock", "show_stack_lock")


def opened(client: Client, key: str) -> str:
    return client.get(f"{LIST}{key}/change/").content.decode()


def test_a_victim_leads_to_the_root_and_is_not_to_be_broken(stage: Stage, operator: Client) -> None:
    """Each box of the chain has its holder. On the page of the host, only the root is ticked."""
    root, middle = Part.task("shop.import", "worker-1", 1), Part.task("shop.refund", "worker-1", 2)
    for key, parts in (("root", (root, middle)), ("mid", (middle, Part("web-1", 3)))):
        for part in parts:
            stage.join_queue(key, part)
    page = opened(operator, "mid")
    assert 'class="button" href="/admin/zklock/lock/root/change/">Go to root' in page
    assert "do=break" not in page
    assert re.search(
        r'href="/admin/zklock/lock/root/change/"[^>]*>root</a> <span>held by worker-1 · pid 1 · shop', page
    )
    host = operator.get(f"{LIST}host/?host=worker-1").content.decode()
    assert re.findall(r'aria-label="(\w+), [^"]*" value="[^"]*" checked', host) == ["root"]
    assert "waits for another lock" in host


def test_the_queue_has_a_row_for_each_process(stage: Stage, operator: Client) -> None:
    """The first ten of them; all waiters are folded below. Bars of the queue are in the timeline."""
    for number in range(15):
        stage.join_queue("k", Part("web-1", number))
    for _ in range(7):
        stage.join_queue("k", Part("web-2", 12))
    page = opened(operator, "k")
    first, folded = page.partition("zklock-queue")[2].split("All 21 waiters in their order")
    assert first.count('<th scope="row">') == 10
    assert folded.count('<th scope="row">') == 21
    assert opened(operator, "k").count('<rect class="zklock-hit"') == 6
    for number in range(4):
        stage.join_queue("few", Part("web-3", 1 + number // 3))
    assert "<strong>×2</strong>" in opened(operator, "few")


def test_the_holders_of_a_semaphore_are_rows(stage: Stage, operator: Client) -> None:
    """Each can be broken for itself: the form has only that one ticked."""
    for number in range(3):
        stage.join_queue("printers", Part(f"web-{number}", limit=3), Kind.PERMIT)
    page = opened(operator, "printers")
    links = re.findall(r'href="([^"]*target=[^"]*)"', page)
    assert len(links) == 3
    form = operator.get(links[1].replace("&amp;", "&")).content.decode()
    assert re.findall(r'aria-label="printers, ([^"]*)" value="[^"]*" checked', form) == ["web-1 · pid 4711"]


def test_groups_are_sorted_by_a_figure(stage: Stage, operator: Client) -> None:
    """Those of hosts have the number of their processes."""
    for number in range(3):
        stage.join_queue(f"a/{number}", Part("web-1", number))
    for number in range(2):
        stage.join_queue("b/0", Part("web-2", number))
    for order, first in (("", "web-2"), ("nonsense", "web-2"), ("locks", "web-1")):
        page = operator.get(f"{LIST}groups/?by=host&o={order}")
        rows = page.context["groups"]
        assert rows[0]["name"] == first, order
        assert {row["name"]: row["processes"] for row in rows} == {"web-1": 3, "web-2": 1}
    assert "by=host&amp;o=locks" in operator.get(f"{LIST}groups/?by=host").content.decode()
