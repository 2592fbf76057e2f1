"""The code in the page on several beats runs."""

from __future__ import annotations

import re
from typing import Any

from celery.utils.imports import symbol_by_name
from support.docs import DOCS

PAGE = DOCS / "how-to" / "celery-beat.md"


def test_the_example_for_several_beats_makes_a_scheduler_that_can_be_shared() -> None:
    """The names of the settings, and of what they name, are those that Celery will look for."""
    names: dict[str, Any] = {}
    exec("".join(re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)), names)
    app = names["app"]
    assert app.conf.zklock_beat_scheduler == "django"
    app.conf.zklock_beat_scheduler = None  # what it names need not be installed
    scheduler = symbol_by_name(app.conf.beat_scheduler)(app, lazy=True)
    assert "schedule -> myproject" in scheduler.info
    assert "celery.beat.PersistentScheduler" in scheduler.info
