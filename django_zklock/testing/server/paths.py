"""What a path may look like. Pure; it does not know which paths exist."""

from __future__ import annotations

import re
from typing import Final

from django_zklock.testing.server.codes import Error, Refused

#: Nodes that every server has and none can lose.
FIXED: Final = ("/", "/zookeeper", "/zookeeper/quota", "/zookeeper/config")

_FORBIDDEN: Final = re.compile("[\0-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff\U00010000-\U0010ffff]")


def validate(path: str | None) -> str:
    """Return the path, or raise Refused for one that no node can have."""
    if path == "/":
        return path
    if path is None or not path.startswith("/") or _FORBIDDEN.search(path):
        raise Refused(Error.BAD_ARGUMENTS)
    if not {"", ".", ".."}.isdisjoint(path[1:].split("/")):
        raise Refused(Error.BAD_ARGUMENTS)
    return path


def split(path: str | None) -> tuple[str, str]:
    """Return the path of the parent, "" for the root, and the name. Raises Refused for what has neither."""
    if path is None:
        raise Refused(Error.MARSHALLING)
    if "\0" in path:
        raise Refused(Error.BAD_ARGUMENTS)
    parent, slash, name = path.rpartition("/")
    if not slash:
        raise Refused(Error.BAD_ARGUMENTS)
    return parent, name
