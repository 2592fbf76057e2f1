"""Write the table of causes in the documentation: `python scripts/causes.py`. The report has the texts."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import django

from django_zklock.management.exit_codes import ExitCode
from django_zklock.report.verdict import CAUSES

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "how-to" / "admin.md"
BEGIN, END = "<!-- causes: written by scripts/causes.py -->\n", "<!-- end of causes -->"


def table() -> str:
    """Return the table: the title of the card, when it is shown, how it ends, and the exit code of the doctor."""
    rows = ["| Card | Shown when | Ends when | `cause`, code |", "|---|---|---|---|"]
    for name, cause in CAUSES.items():
        title = re.sub(r"%\(\w+\)[ds]", "…", str(cause.title)).removesuffix(": …")
        code = ExitCode.UNAVAILABLE if name == "quorum" else ExitCode[name.upper()]
        rows.append(f"| **{title}** | {' '.join((cause.__doc__ or '').split())} | {cause.ends} | `{name}` {code:d} |")
    return "\n".join(rows) + "\n"


def written(page: str) -> str:
    """Return the page with the present table."""
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}{table()}{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "settings")
    django.setup()
    PAGE.write_text(written(PAGE.read_text()))
