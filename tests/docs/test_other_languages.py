"""The Python code of the guide to locks from other languages runs; what runs in Node has its own tests."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from support.docs import BLOCK, DOCS
from support.serving import Serving
from support.zoo import Zoo

from django_zklock import conf
from django_zklock.contrib.leases import views

pytestmark = pytest.mark.zookeeper

PAGE = (DOCS / "how-to" / "lock-from-other-languages.md").read_text()
FILES = dict(BLOCK.findall(PAGE))


def test_the_examples_in_python_run(zoo: Zoo) -> None:
    """With a coordinator at one of the two addresses, they write under the lock."""
    assert PAGE.count("```python\n") == len(FILES) == 2
    with Serving(zoo, session_timeout=10) as coordinator:
        report: dict[str, Any] = {"__name__": "report"}
        code = FILES["report.py"].replace("127.0.0.1:50051", "127.0.0.1:1")
        exec(code.replace("127.0.0.1:50052", coordinator.address), report)
        written = []
        with report["client"]:
            report["write_report"]("may", ["one", "two"], lambda page, token: written.append((page, token)))
        assert [page for page, _ in written] == ["one", "two"]
        assert written[0][1] == written[1][1] > 0

        areport: dict[str, Any] = {"__name__": "areport"}
        exec(FILES["areport.py"], areport)
        tokens = []

        async def write(token: int) -> None:
            tokens.append(token)

        asyncio.run(areport["write_report"](coordinator.address, "june", write))
        assert tokens[0] > written[0][1]


def test_the_settings_and_urls_of_the_coordinator_are_sound() -> None:
    """What a reader copies passes the checks, and its URLs lead to the views."""
    text = (DOCS / "how-to" / "lock-coordinator.md").read_text()
    blocks = dict(BLOCK.findall(text))
    assert text.count("```python\n") == len(blocks) == 2
    names: dict[str, Any] = {}
    exec(blocks["settings.py"], names)
    assert conf.problems(names["ZKLOCK"]) == []
    exec(blocks["urls.py"], names)
    (leases,) = names["urlpatterns"]
    assert leases.resolve("locks/").func is views.leases
