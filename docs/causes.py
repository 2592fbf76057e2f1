"""The causes of incidents on their page, from the texts of the report, which are also those of the admin."""

from __future__ import annotations

import re

PAGE = "reference/incidents"
MARKER = "<!-- causes: from the report -->\n"


def sections() -> str:
    """Return a section for each cause, the worst first: its card, when that is shown, how it ends."""
    from django_zklock.report.verdict import CAUSES  # noqa: PLC0415 - after the set-up of Django

    parts = []
    for name, cause in CAUSES.items():
        title = re.sub(r"%\(\w+\)[ds]", "…", str(cause.title)).removesuffix(": …")
        text = " ".join(str(cause.__doc__).replace("](", "](../how-to/").split())
        parts.append(f"## {name}\n**{title}**\n\n{text}\n\n*Ends:* {cause.ends}\n\n")
    return "".join(parts)


def add_causes(app, page, source):
    if page == PAGE:
        source[0] = source[0].replace(MARKER, sections())


def setup(app):
    app.connect("source-read", add_causes)
