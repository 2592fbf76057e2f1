"""The code blocks of the documentation: run in this process, or written to files as a reader would copy them."""

import re
import subprocess
from pathlib import Path

from support.project import Project

DOCS = Path(__file__).resolve().parents[2] / "docs"
BLOCK = re.compile(r"^```python\n# (\S+\.py)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
OTHER_BLOCK = re.compile(r"^```(?:javascript|go|java)\n// (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
"""A block that names its file in its first line: the name, and the code."""


def text_of(page):
    return (DOCS / page).read_text()


def files_of(page, *, unnamed=0):
    """Return the files that a page shows, with their blocks joined. Only `unnamed` blocks may lack a name."""
    text = text_of(page)
    blocks = BLOCK.findall(text)
    assert text.count("```python\n") == len(blocks) + unnamed, "a block does not name its file"
    files = {}
    for name, code in blocks:
        files[name] = files.get(name, "") + code
    return files


def settings_of(page, *, unnamed=0):
    """Return the settings of a project after a reader has added those that a page shows."""
    return f"from project_settings import *\n{files_of(page, unnamed=unnamed)['settings.py']}"


def programs_of(page):
    return dict(OTHER_BLOCK.findall(text_of(page)))


def run(code, name="example", names=None):
    names = {"__name__": name.removesuffix(".py")} if names is None else names
    exec(compile(code, name, "exec"), names)
    return names


def run_all(page, **names):
    names.setdefault("__name__", "example")
    for name, code in files_of(page).items():
        run(code, name, names)
    return names


def written(page, directory, files=None, *, unnamed=0):
    project = Project(directory)
    for name, code in {**files_of(page, unnamed=unnamed), **(files or {})}.items():
        project.write(name, code)
    return project


def assert_passes(project, test, *options):
    project.write("test_shown.py", test)
    assert " passed" in project.succeed("-m", "pytest", "-q", *options, "test_shown.py").stdout


def shell(*arguments, directory, env=None):
    """Run bash in a directory, to its end."""
    return subprocess.run(
        ["bash", *arguments], cwd=directory, env=env, input="", text=True, capture_output=True, timeout=120, check=False
    )
