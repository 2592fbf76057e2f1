"""Write the page of incidents in the documentation: `python scripts/causes.py`. The report has the texts."""

from __future__ import annotations

import os
import re
import sys
import textwrap
from pathlib import Path

import django

from django_zklock.report.verdict import CAUSES

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "reference" / "incidents.md"
BEGIN, END = "<!-- causes: written by scripts/causes.py -->\n", "<!-- end of causes -->"


def sections() -> str:
    """Return a section for each cause, the worst first: its card, when that is shown, how it ends."""
    parts = []
    for name, cause in CAUSES.items():
        title = re.sub(r"%\(\w+\)[ds]", "…", str(cause.title)).removesuffix(": …")
        text = " ".join(str(cause.__doc__).replace("](", "](../how-to/").split())
        text = textwrap.fill(text, 105, break_on_hyphens=False)
        parts.append(f"## {name}\n**{title}**\n\n{text}\n\n*Ends:* {cause.ends}\n\n")
    return "".join(parts)


def written(page: str) -> str:
    """Return the page with the present list."""
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n{sections()}{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "settings")
    django.setup()
    PAGE.write_text(written(PAGE.read_text()))
