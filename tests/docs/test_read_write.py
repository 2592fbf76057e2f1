"""The code in the guide to read-write locks runs."""

from __future__ import annotations

from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.http import HttpResponse
from django.test import RequestFactory
from support.docs import run_all
from support.faults import BackgroundCall
from support.zoo import Zoo

from django_zklock import zk_lock, zk_read, zk_write
from django_zklock.exceptions import LockBusy, LockUpgradeRefused

pytestmark = pytest.mark.zookeeper


def sides() -> str:
    def can_have(kind: Any) -> bool:
        try:
            with zk_lock("catalogue/berlin", kind=kind, timeout=0):
                return True
        except LockBusy:
            return False

    return BackgroundCall(lambda: ",".join(filter(can_have, ("read", "write")))).result()


@pytest.fixture
def page(zoo: Zoo) -> dict[str, Any]:
    """Run the page. The functions that its code calls note which side is free meanwhile."""
    seen: list[str] = []

    def note(*_: object, **__: object) -> list[str]:
        seen.append(sides())
        return ["wrong"]

    def respond(*_: object) -> HttpResponse:
        return HttpResponse(note())

    names: dict[str, Any] = dict.fromkeys(("read_all", "write_all", "check_all", "find_mistakes"), note)
    names |= {"render_catalogue": respond, "store_catalogue": respond, "find_sold_out": sync_to_async(note)}
    return run_all("how-to/read-write-locks.md", seen=seen, **names)


def test_readers_and_writers_exclude_each_other_as_the_page_says(page: dict[str, Any]) -> None:
    page["export"]()
    page["replace"]()
    request = RequestFactory().get("/")
    assert page["show"](request, shop="berlin").status_code == 200
    assert page["upload"](request, shop="berlin").status_code == 200
    assert async_to_sync(page["sold_out"])("berlin") == ["wrong"]
    assert page["seen"] == ["read", "", "read", "", "read"]


def test_the_example_of_a_downgrade_lets_readers_work(page: dict[str, Any]) -> None:
    page["rebuild"]("berlin")
    assert page["seen"] == ["", "read"]


def test_a_reader_is_refused_the_write_side(page: dict[str, Any]) -> None:
    assert page["correct"]("berlin") == ["wrong"]
    assert page["seen"] == ["read", "", ""]
    advice = "would wait for its own release.*downgrade"
    with zk_read("catalogue/berlin"), pytest.raises(LockUpgradeRefused, match=advice), zk_write("catalogue/berlin"):
        pass
