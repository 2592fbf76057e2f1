"""The code in the how-to about streamed responses runs."""

from __future__ import annotations

from pathlib import Path

from support.docs import BLOCK, DOCS
from support.project import Project


def test_the_examples_for_streamed_responses_pass(tmp_path: Path) -> None:
    """What a reader would copy into a project and its tests works."""
    text = (DOCS / "how-to" / "streaming-responses.md").read_text()
    blocks = BLOCK.findall(text)
    assert text.count("```python\n") == len(blocks), "a block does not name its file"
    project = Project(tmp_path)
    for name, code in blocks:
        path = tmp_path / name
        project.write(name, (path.read_text() if path.exists() else "") + code)
    done = project.run("-m", "pytest", "-q", "test_reports.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout
