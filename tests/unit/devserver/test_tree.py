"""The dev server's znodes: the rules a real server has, without a server."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_zklock.testing.server.acl import OPEN
from django_zklock.testing.server.codes import Error, Mode, Refused
from django_zklock.testing.server.tree import Tree


def refusal(function: Any, *args: Any, **kwargs: Any) -> Error:
    """Return the code a call is refused with."""
    with pytest.raises(Refused) as caught:
        function(*args, **kwargs)
    return caught.value.code


def make(tree: Tree, path: str, mode: Mode = Mode.PERSISTENT, **kwargs: Any) -> str:
    return tree.create(path, b"", OPEN, mode, **kwargs)


def image(tree: Tree) -> dict[str, Any]:
    """Return all there is to know of a tree."""
    nodes = {path: (node.stat(), node.data, node.acl, frozenset(node.children)) for path, node in tree.nodes.items()}
    own = {session: set(paths) for session, paths in tree.ephemerals.items()}
    return {"nodes": nodes, "ephemerals": own, "mortal": set(tree.expiring), "changes": list(tree.changes)}


def test_the_sequence_number_stays_at_the_end_of_32_bits() -> None:
    """At the end of 32 bits the counter stays, as the real server's does, and the next one finds its name taken."""
    tree = Tree()
    make(tree, "/q")
    tree.nodes["/q"].creations = 2**31 - 1
    assert make(tree, "/q/a-", Mode.PERSISTENT_SEQUENTIAL) == "/q/a-2147483647"
    assert refusal(make, tree, "/q/a-", Mode.PERSISTENT_SEQUENTIAL) == Error.NODE_EXISTS


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["create", "delete", "set", "check"]),
        st.sampled_from(["/a", "/b", "/a/x", "/a/y", "/b/x", "/a/x/z", "/nope/x"]),
        st.sampled_from([Mode.PERSISTENT, Mode.EPHEMERAL, Mode.CONTAINER, Mode.PERSISTENT_SEQUENTIAL]),
        st.integers(-1, 2),
    ),
    max_size=12,
)


def carry_out(tree: Tree, steps: list[tuple[str, str, Mode, int]], zxid: int) -> None:
    for verb, path, mode, version in steps:
        try:
            if verb == "create":
                make(tree, path, mode, session=5, zxid=zxid)
            elif verb == "delete":
                tree.delete(path, version, zxid=zxid)
            elif verb == "set":
                tree.set_data(path, path.encode(), version, zxid=zxid, now=zxid)
            else:
                tree.check(path, version)
        except Refused:
            pass


@given(STEPS, STEPS)
def test_a_rollback_restores_every_field(before: list[Any], within: list[Any]) -> None:
    """A rollback leaves each field of any tree as it was."""
    tree = Tree()
    carry_out(tree, before, 1)
    tree.changes.clear()
    before_image = image(tree)
    tree.begin()
    carry_out(tree, within, 2)
    tree.roll_back()
    assert image(tree) == before_image


@given(STEPS)
def test_parents_children_and_ephemerals_of_the_tree_agree(steps: list[Any]) -> None:
    """Every node is its parent's child and the other way round, and the lists of ephemerals and mortals are right."""
    tree = Tree()
    carry_out(tree, steps, 1)
    for path, node in tree.nodes.items():
        for name in node.children:
            assert f"{path.rstrip('/')}/{name}" in tree.nodes
        if len(path) > 1:
            parent, _, name = path.rpartition("/")
            assert name in tree.nodes[parent].children
    assert {path for own in tree.ephemerals.values() for path in own} == {
        path for path, node in tree.nodes.items() if node.ephemeral
    }
    assert tree.expiring == {path for path, node in tree.nodes.items() if node.owner and not node.ephemeral}
