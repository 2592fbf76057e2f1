"""The rules of the queue, written a second time: slowly, from the names alone, without code of the package."""

import re

_CONTENDER = re.compile(r"_c_(?P<guid>.{36})-(?P<recipe>lock-|__READ__|__WRIT__|lease-)(?P<number>[0-9]{10})")
_OWNER = re.compile(r'"owner":(?P<number>[0-9]+)')
_LIMIT = re.compile(r"!limit:(?P<value>[0-9]+):")


def limit(tree, parent):
    for name in tree.nodes[parent].children if parent in tree.nodes else ():
        match = _LIMIT.fullmatch(name)
        if match:
            return name, int(match["value"])
    return "", 0


def entitled(tree, parent):
    if parent not in tree.nodes:
        return set()
    names = tree.nodes[parent].children
    matches = sorted(filter(None, map(_CONTENDER.fullmatch, names)), key=lambda match: int(match["number"]))
    _, most = limit(tree, parent)
    kinds = [_kind(names, match) for match in matches]
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


def own_limit(tree, path):
    data = tree.nodes[path].data.decode()
    text = "" if data.startswith("{") else data.partition(" ")[2]
    return int(text or 1)


def waits(tree):
    """Return the paths of all waiters, each with those ahead that must go first. Not for permits."""
    waiters = {}
    for parent in {path.rpartition("/")[0] for path in tree.nodes if _CONTENDER.search(path)}:
        names, having = tree.nodes[parent].children, entitled(tree, parent)
        matches = sorted(filter(None, map(_CONTENDER.fullmatch, names)), key=lambda match: int(match["number"]))
        for index, match in enumerate(matches):
            ahead = [other[0] for other in matches[:index] if not match["recipe"] == _kind(names, other) == "__READ__"]
            if f"{parent}/{match[0]}" not in having:
                waiters[f"{parent}/{match[0]}"] = [f"{parent}/{name}" for name in ahead]
    return waiters


def circle(tree, waiter, holders):
    """
    Return the paths of a circle through a waiter, empty if there is none. If there are several, none is younger in it.

    Each waits for the next, or holds its lock, and has an owner who waits. `holders` names these, as `owner` does.
    """
    awaited = waits(tree)
    older = [path for path in tree.nodes if path not in awaited or tree.nodes[path].czxid <= tree.nodes[waiter].czxid]
    for allowed in (older, tree.nodes) if waiter in awaited else ():
        ways, seen = [[waiter]], set()
        for way in ways:  # which grows
            of_owner = [path for path in awaited if owner(tree, path) == holders.get(way[-1])]
            for path in awaited.get(way[-1], of_owner):
                if path == waiter:
                    return way
                if path not in seen and path in allowed:
                    seen.add(path)
                    ways.append([*way, path])
    return []


def _kind(names, match):
    return match["recipe"]


def owner(tree, path):
    """Return who has a contender: its session, and the number of its thread there; empty if it is unknown."""
    number = _OWNER.search(tree.nodes[path].data.decode())
    return f"{tree.nodes[path].owner} {number['number']}" if number else ""
