"""The history: readable on a desk and on a phone, filtered, and in pages."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from support.browser.pages import LIST, PHONE, Visitor
from support.browser.site import Site
from support.zoo import Zoo

Visit = Callable[..., Visitor]
pytestmark = pytest.mark.zookeeper

HISTORY = f"{LIST}history/"
MARK = "made by test_history"
TABLES = ("zklock_events_attempt", "zklock_events_operatoraction")


@pytest.fixture
def recorded(site: Site, swept: Zoo) -> Iterator[None]:
    """Sixty grants, a loss, and an action before them."""
    now = datetime.now(timezone.utc)
    with closing(sqlite3.connect(Path(site.environment["SITE_HOME"]) / "site.sqlite3", timeout=20)) as database:

        def insert(table: str, seconds: float, **values: Any) -> None:
            values["at"] = (now - timedelta(seconds=seconds)).strftime("%Y-%m-%d %H:%M:%S.%f")
            names, marks = ", ".join(f'"{name}"' for name in values), ", ".join("?" * len(values))
            database.execute(f"INSERT INTO {table} ({names}) VALUES ({marks})", list(values.values()))

        attempt: dict[str, Any] = {
            "template": MARK,
            "kind": "lock",
            "pid": 812,
            "token": 7,
            "waited": 0.5,
            "reason": "",
        }
        for number in range(60):
            insert(
                TABLES[0],
                10 + number,
                **{**attempt, "key": f"orders/{1000 + number}", "host": "worker-3", "held": 2.0, "outcome": "released"},
                work="task shop.tasks.charge",
            )
        reason = "the lease is over: no quorum has confirmed the session in time"
        lost = {"key": "stock/import", "host": "worker-4", "held": 61.0, "outcome": "lost", "work": "POST /stock/"}
        insert(TABLES[0], 5, **{**attempt, **lost, "reason": reason})
        action = {"key": "orders/1042", "what": "broken", "by": "admin", "via": "command", "sure": True}
        text = "its worker hangs in the payment provider, which is known to be down"
        insert(TABLES[1], 3600, **action, reason=text, holder=MARK, token=7)
        database.commit()
        yield
        database.execute(f"DELETE FROM {TABLES[0]} WHERE template = ?", [MARK])
        database.execute(f"DELETE FROM {TABLES[1]} WHERE holder = ?", [MARK])
        database.commit()


@pytest.mark.usefixtures("recorded")
@pytest.mark.parametrize("width", [1280, 700, 390])
def test_no_cell_of_the_history_breaks_a_word_into_letters(visitor: Visit, width: int) -> None:
    """A phone shows a card for each row. A filter finds the operator's action, after which many rows came."""
    look = PHONE if width == PHONE["width"] else {"width": width, "height": 900}
    operator = visitor("operator", viewport=look)
    operator.open(HISTORY)
    operator.picture(f"history-rows-{width}", full_page=False)
    page = operator.page
    assert page.locator(".zklock-history tbody tr").count() == 50
    widths = page.locator(".zklock-history tbody td").evaluate_all(
        "cells => cells.filter(cell => cell.textContent.trim()).map(cell => cell.getBoundingClientRect().width)"
    )
    assert min(widths) >= 80
    heights = page.locator(".zklock-history tbody tr").evaluate_all(
        "rows => rows.map(row => row.getBoundingClientRect().height)"
    )
    assert max(heights) <= 200
    operator.assert_accessible()
    operator.assert_fits()
    operator.follow("Only operators' actions")
    page.get_by_label("Who, or which work").fill("admin")
    operator.press("Filter")
    assert page.get_by_text("its worker hangs in the payment provider").is_visible()


@pytest.mark.usefixtures("recorded")
def test_the_history_is_filtered_and_turned_by_an_operator(visitor: Visit) -> None:
    operator = visitor("operator")
    operator.open(f"{HISTORY}?host=worker-3")
    operator.follow("Older")
    operator.picture("history-older")
    rows = operator.page.locator(".zklock-history tbody tr")
    assert rows.count() == 10, rows.all_inner_texts()
    operator.follow("Newest")
    operator.page.get_by_label("Host").fill("worker-4")
    operator.page.get_by_label("What").select_option("lost")
    operator.press("Filter")
    rows = operator.page.locator(".zklock-history tbody tr")
    assert rows.count() == 1
    assert "stock/import" in rows.first.inner_text()
    operator.page.get_by_label("Host").fill("nobody")
    operator.press("Filter")
    assert operator.page.get_by_text("No row has these values.").is_visible()
    operator.picture("history-filtered")
