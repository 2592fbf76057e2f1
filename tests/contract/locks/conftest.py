"""The order of locks that a test has seen."""

import json

import pytest

from django_zklock.core import hooks
from django_zklock.testing import order


class Seen:
    """The file of one watcher."""

    def __init__(self, path):
        self.path = path
        path.touch()

    @property
    def edges(self):
        """The edges by their templates, the outer and the inner one."""
        edges = [order.Edge(*json.loads(line)) for line in self.path.read_text().splitlines()]
        return {(edge.outer, edge.inner): edge for edge in edges}


@pytest.fixture
def seen(tmp_path, monkeypatch):
    """See the order of locks in this test."""
    seen = Seen(tmp_path / "order")
    monkeypatch.setenv(order.FILE, str(seen.path))
    monkeypatch.setattr(hooks, "watchers", [order.Watcher().asks])
    return seen
