"""The Python code of the guide to locks from other languages runs; what runs in Node has its own tests."""

from __future__ import annotations

import asyncio

import pytest
from support.docs import files_of, run
from support.serving import Serving
from support.zoo import Zoo

pytestmark = pytest.mark.zookeeper


def test_the_examples_in_python_run(zoo: Zoo) -> None:
    """With a coordinator at one of the two addresses, they write under the lock."""
    files = files_of("how-to/lock-from-other-languages.md")
    with Serving(zoo, session_timeout=10) as coordinator:
        code = files["report.py"].replace("127.0.0.1:50051", "127.0.0.1:1")
        report = run(code.replace("127.0.0.1:50052", coordinator.address))
        written = []
        with report["client"]:
            report["write_report"]("may", ["one", "two"], lambda page, token: written.append((page, token)))
        assert [page for page, _ in written] == ["one", "two"]
        assert written[0][1] == written[1][1] > 0

        areport = run(files["areport.py"])
        tokens = []

        async def write(token: int) -> None:
            tokens.append(token)

        asyncio.run(areport["write_report"](coordinator.address, "june", write))
        assert tokens[0] > written[0][1]
