"""Save the nodes of a server to a JSON file, and load them. Sessions and ephemeral nodes are not saved."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path
from typing import Any, Final

from django_zklock.testing.server.records import Acl
from django_zklock.testing.server.tree import Node, Tree

FORMAT: Final = "zookeeper-devserver-1"
_NUMBERS: Final = ("czxid", "mzxid", "pzxid", "ctime", "mtime", "version", "aversion", "creations")


def save(path: Path, tree: Tree, zxid: int) -> None:
    """Write the nodes to a file. Readers see either the old content or the new, never a part."""
    nodes = {name: _pack(node) for name, node in sorted(tree.nodes.items()) if name and not node.ephemeral}
    content = json.dumps({"zxid": zxid, FORMAT: nodes}, indent=1)
    scratch = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        scratch.write_text(content, encoding="utf-8")
        scratch.replace(path)
    finally:
        scratch.unlink(missing_ok=True)


def load(path: Path) -> tuple[Tree, int]:
    """Read the nodes and the last transaction id from a file. Raises ValueError if the file is not valid."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        nodes = content[FORMAT]
        tree = Tree()
        for name in sorted(nodes):  # parents come before their children
            _put(tree, name, _unpack(nodes[name]))
        return tree, int(content["zxid"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is not a snapshot of a dev server: {error}") from error


def _pack(node: Node) -> dict[str, Any]:
    return {
        "data": None if node.data is None else base64.b64encode(node.data).decode("ascii"),
        "acl": [list(acl) for acl in node.acl],
        "owner": node.owner,
        **{name: getattr(node, name) for name in _NUMBERS},
    }


def _unpack(packed: dict[str, Any]) -> Node:
    data = packed["data"]
    acl = tuple(Acl(*fields) for fields in packed["acl"])
    node = Node(None if data is None else base64.b64decode(data), acl, packed["owner"], 0, 0)
    for name in _NUMBERS:
        setattr(node, name, int(packed[name]))
    return node


def _put(tree: Tree, path: str, node: Node) -> None:
    before = tree.nodes.get(path)
    if before is not None:
        node.children = before.children
    tree.nodes[path] = node
    if path == "/":
        tree.nodes[""] = node
        return
    parent, _, name = path.rpartition("/")
    tree.nodes[parent].children.add(name)
    if node.owner:
        tree.containers.add(path)
