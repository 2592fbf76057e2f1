"""The rules of the queue, written a second time: slowly, from the names alone, without code of the package."""

from __future__ import annotations

import re

from model.tree import Tree

_CONTENDER = re.compile(r"_c_(?P<guid>.{36})-(?P<recipe>lock-|__READ__|__WRIT__|lease-)(?P<number>[0-9]{10})")
_LIMIT = re.compile(r"!limit:(?P<value>[0-9]+):")


def limit(tree: Tree, parent: str) -> tuple[str, int]:
    """Return the marker of the limit of a queue, and its value; empty and 0 if there is none."""
    for name in tree.nodes[parent].children if parent in tree.nodes else ():
        found = _LIMIT.fullmatch(name)
        if found:
            return name, int(found["value"])
    return "", 0


def entitled(tree: Tree, parent: str) -> set[str]:
    """Return the paths of the contenders below a node that may have the lock, all at a time."""
    if parent not in tree.nodes:
        return set()
    names = tree.nodes[parent].children
    found = sorted(filter(None, map(_CONTENDER.fullmatch, names)), key=lambda each: int(each["number"]))
    _, most = limit(tree, parent)
    kinds = ["__READ__" if f"!reads:{each['guid']}:" in names else each["recipe"] for each in found]
    having = set()
    for place, each in enumerate(found):
        path = f"{parent}/{each[0]}"
        if (
            place == 0
            or set(kinds[: place + 1]) == {"__READ__"}
            or (set(kinds[: place + 1]) == {"lease-"} and place < (most or own_limit(tree, path)))
        ):
            having.add(path)
    return having


def own_limit(tree: Tree, path: str) -> int:
    """Return how many permits there are as a contender knows."""
    text = tree.nodes[path].data.decode().partition(" ")[2]
    return int(text) if text else 1
