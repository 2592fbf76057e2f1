"""The tree of nodes that one server has in memory."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field


@dataclass(slots=True)
class Znode:
    czxid: int
    owner: int = 0
    data: bytes = b""
    container: bool = False
    made: int = 0  # children ever made below it
    version: int = 0  # of its data
    born: float = 0.0  # when it was created, by the leader's clock
    children: set[str] = field(default_factory=set)


class Tree:
    def __init__(self):
        self.nodes = {"": Znode(0)}

    def create(self, path, node):
        parent, _, name = path.rpartition("/")
        self.nodes[path] = node
        above = self.nodes[parent]
        above.children.add(name)
        above.made += 1

    def delete(self, path):
        if self.nodes.pop(path, None) is None:
            return False
        parent, _, name = path.rpartition("/")
        self.nodes[parent].children.discard(name)
        return True

    def write(self, path, data):
        node = self.nodes.get(path)
        if node is not None:
            node.data = data
            node.version += 1

    def owned(self, session):
        return [path for path, node in self.nodes.items() if node.owner == session]

    def copy(self):
        return copy.deepcopy(self)
