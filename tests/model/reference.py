"""The rules of the queue, written a second time: slowly, from the names alone, without code of the package."""

from __future__ import annotations

import re

from model.tree import Tree

_CONTENDER = re.compile(r"_c_(?P<guid>.{36})-(?P<recipe>lock-|__READ__|__WRIT__|lease-)(?P<number>[0-9]{10})")
_HOLD_LIMIT = re.compile(r'"limit":(?P<value>[0-9]+)')  # in the data of a hold that waits for its adopter
_LIMIT = re.compile(r"!limit:(?P<value>[0-9]+):")


def limit(tree: Tree, parent: str) -> tuple[str, int]:
    """Return the marker of the limit of a queue, and its value; empty and 0 if there is none."""
    for name in tree.nodes[parent].children if parent in tree.nodes else ():
        match = _LIMIT.fullmatch(name)
        if match:
            return name, int(match["value"])
    return "", 0


def entitled(tree: Tree, parent: str) -> set[str]:
    """Return the paths of the contenders below a node that may have the lock, all at a time."""
    if parent not in tree.nodes:
        return set()
    names = tree.nodes[parent].children
    matches = sorted(filter(None, map(_CONTENDER.fullmatch, names)), key=lambda match: int(match["number"]))
    _, most = limit(tree, parent)
    kinds = ["__READ__" if f"!reads:{match['guid']}:" in names else match["recipe"] for match in matches]
    having = set()
    for index, match in enumerate(matches):
        path = f"{parent}/{match[0]}"
        if (
            index == 0
            or set(kinds[: index + 1]) == {"__READ__"}
            or (set(kinds[: index + 1]) == {"lease-"} and index < (most or own_limit(tree, path)))
        ):
            having.add(path)
    return having


def own_limit(tree: Tree, path: str) -> int:
    """Return how many permits there are as a contender knows."""
    data = tree.nodes[path].data.decode()
    match = _HOLD_LIMIT.search(data)
    text = match["value"] if match else "" if data.startswith("{") else data.partition(" ")[2]
    return int(text) if text else 1
