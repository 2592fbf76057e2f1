"""The code in the page on several beats runs."""

from __future__ import annotations

import re

from celery.utils.imports import symbol_by_name
from support.docs import run, text_of


def test_the_example_for_several_beats_makes_a_shared_scheduler() -> None:
    """The names of the settings, and of what they name, are those that Celery will look for."""
    blocks = re.findall(r"^```python\n(.*?)^```$", text_of("how-to/celery-beat.md"), re.MULTILINE | re.DOTALL)
    app = run("".join(blocks))["app"]
    assert app.conf.zklock_beat_scheduler == "django"
    app.conf.zklock_beat_scheduler = None  # what it names need not be installed
    scheduler = symbol_by_name(app.conf.beat_scheduler)(app, lazy=True)
    assert "schedule -> myproject" in scheduler.info
    assert "celery.beat.PersistentScheduler" in scheduler.info
