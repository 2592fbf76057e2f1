"""The code of the guide to locks from other languages runs."""

from __future__ import annotations

import asyncio
import os
import subprocess
from pathlib import Path

import pytest
from support import lease_clients
from support.docs import files_of, programs_of, run
from support.serving import Serving
from support.zoo import Zoo

pytestmark = pytest.mark.zookeeper


def test_the_examples_in_python_run(zoo: Zoo) -> None:
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


@pytest.mark.parametrize(
    ("language", "file"),
    [
        ("node", "report.js"),
        pytest.param("go", "report.go", marks=pytest.mark.chaos),
        pytest.param("java", "Report.java", marks=pytest.mark.chaos),
    ],
)
@pytest.mark.timeout(600)
def test_the_programs_in_other_languages_run(zoo: Zoo, language: str, file: str, tmp_path: Path) -> None:
    with Serving(zoo, session_timeout=10) as coordinator:
        code = programs_of("how-to/lock-from-other-languages.md")[file]
        code = code.replace("127.0.0.1:50051", "127.0.0.1:1").replace("127.0.0.1:50052", coordinator.address)
        (tmp_path / file).write_text(code)
        try:
            words, env = lease_clients.program(language, tmp_path / file)
        except lease_clients.Unavailable as reason:
            pytest.skip(str(reason))
        done = subprocess.run(words, env={**os.environ, **env}, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    pages, tokens = zip(*(line.split() for line in done.stdout.splitlines()), strict=True)
    assert pages == ("one", "two")
    assert int(tokens[0]) == int(tokens[1]) > 0
