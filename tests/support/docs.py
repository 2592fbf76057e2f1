"""The code blocks of the documentation, written to files as a reader would copy them."""

from __future__ import annotations

import re
from pathlib import Path

from support.project import Project

DOCS = Path(__file__).resolve().parents[2] / "docs"
BLOCK = re.compile(r"^```python\n# (\S+\.py)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
"""A block that names its file in its first line: the name, and the code."""


def written(page: str, directory: Path, unnamed: int = 0) -> Project:
    """Write a project with the files that a how-to shows. Only `unnamed` of its blocks may lack the name of a file."""
    text = (DOCS / "how-to" / page).read_text()
    named = BLOCK.findall(text)
    assert text.count("```python\n") == len(named) + unnamed, "a block does not name its file"
    project = Project(directory)
    files: dict[str, str] = {}
    for name, code in named:
        files[name] = files.get(name, "") + code
    for name, code in files.items():
        project.write(name, code)
    return project
