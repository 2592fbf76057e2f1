"""The code in the how-to about streamed responses runs."""

from __future__ import annotations

from pathlib import Path

from support.docs import written


def test_the_examples_for_streamed_responses_pass(tmp_path: Path) -> None:
    done = written("how-to/streaming-responses.md", tmp_path).succeed("-m", "pytest", "-q", "test_reports.py")
    assert "3 passed" in done.stdout
