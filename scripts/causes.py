"""Write the list of causes in the documentation: `python scripts/causes.py`. The report has the texts."""

from __future__ import annotations

import os
import re
import sys
import textwrap
from pathlib import Path

import django

from django_zklock.management.exit_codes import ExitCode
from django_zklock.report.verdict import CAUSES

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "how-to" / "admin.md"
BEGIN, END = "<!-- causes: written by scripts/causes.py -->\n", "<!-- end of causes -->"


def table() -> str:
    """Return a line for each cause, the worst first: its card, when that is shown, how it ends, the exit code."""
    lines = []
    for name, cause in CAUSES.items():
        title = re.sub(r"%\(\w+\)[ds]", "…", str(cause.title)).removesuffix(": …")
        code = ExitCode.UNAVAILABLE if name == "quorum" else ExitCode[name.upper()]
        text = f"**{title}** (`{name}`, {code:d}). {cause.__doc__} Ends: {cause.ends}"
        text = " ".join(text.split())  # Python before 3.13 keeps the indentation of a docstring
        lines.append(textwrap.fill(text, 105, initial_indent="* ", subsequent_indent="  ", break_on_hyphens=False))
    return "\n".join(lines) + "\n"


def written(page: str) -> str:
    """Return the page with the present list."""
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}{table()}{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "settings")
    django.setup()
    PAGE.write_text(written(PAGE.read_text()))
