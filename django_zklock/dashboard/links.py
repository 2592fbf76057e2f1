"""Knows how to lead from a contender to other pages about it, by the templates in `ZKLOCK["ADMIN_LINKS"]`."""

from __future__ import annotations

import string
from typing import TYPE_CHECKING
from urllib.parse import quote

from django_zklock import conf

if TYPE_CHECKING:
    from django_zklock.inspection import ContenderInfo


def links(key: str, contender: ContenderInfo) -> list[tuple[str, str]]:
    """
    Return labels and addresses; a template is left out where a field of it has no value.

    Every value is percent-encoded, slashes included, so that none can lead to another place than its template does.
    """
    values = {
        "key": key,
        "host": contender.host,
        "pid": str(contender.pid or ""),
        "what": contender.what,
        "guid": contender.guid,
        "token": str(contender.token),
        **contender.about,
    }
    found = []
    for label, template in conf.current().admin_links.items():
        fields = [name for _, name, _, _ in string.Formatter().parse(template) if name]
        if all(values.get(name) for name in fields):
            found.append((label, template.format_map({name: quote(values[name], safe="") for name in fields})))
    return found
