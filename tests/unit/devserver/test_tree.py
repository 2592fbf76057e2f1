"""The dev server's znodes: the rules a real server has, without a server."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_zklock.testing.server.acl import OPEN, Credential, digest, resolve
from django_zklock.testing.server.codes import Error, Event, Mode, Refused
from django_zklock.testing.server.records import Acl
from django_zklock.testing.server.tree import Tree

JOE = Credential("digest", digest("joe:secret"))


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


def test_the_sequence_counts_creations() -> None:
    """Every creation below a node counts, deletions do not take a number back, and cversion counts both."""
    tree = Tree()
    make(tree, "/q")
    assert make(tree, "/q/a-", Mode.PERSISTENT_SEQUENTIAL) == "/q/a-0000000000"
    make(tree, "/q/plain")
    tree.delete("/q/plain", -1)
    assert make(tree, "/q/b-", Mode.EPHEMERAL_SEQUENTIAL, session=7) == "/q/b-0000000002"
    assert tree.nodes["/q"].stat().cversion == 4
    assert tree.nodes["/q"].stat().children == 2


def test_the_sequence_number_grows_beyond_ten_digits_never() -> None:
    """At the end of 32 bits the counter stays, as the real server's does, and the next one finds its name taken."""
    tree = Tree()
    make(tree, "/q")
    tree.nodes["/q"].creations = 2**31 - 1
    assert make(tree, "/q/a-", Mode.PERSISTENT_SEQUENTIAL) == "/q/a-2147483647"
    assert refusal(make, tree, "/q/a-", Mode.PERSISTENT_SEQUENTIAL) == Error.NODE_EXISTS


def test_ephemerals_end_with_their_session_and_have_no_children() -> None:
    """Only those of the session go, and the changes are reported."""
    tree = Tree()
    make(tree, "/mine", Mode.EPHEMERAL, session=1)
    make(tree, "/yours", Mode.EPHEMERAL, session=2)
    assert refusal(make, tree, "/mine/child") == Error.NO_CHILDREN_FOR_EPHEMERALS
    tree.changes.clear()
    assert tree.end_session(1, zxid=9) == ["/mine"]
    assert [(change.event, change.path) for change in tree.changes] == [(Event.DELETED, "/mine")]
    assert "/yours" in tree.nodes
    assert tree.end_session(1, zxid=10) == []
    assert tree.nodes["/"].pzxid == 9


@pytest.mark.parametrize("path", [None, "", "x", "//", "/a/", "/a//b", "/./x", "/..", "/a\x01", "/a\0", "/\ue000"])
def test_bad_paths_are_refused(path: str | None) -> None:
    """Nothing is created for a path that no node can have."""
    tree = Tree()
    make(tree, "/a")
    before = image(tree)
    assert refusal(make, tree, path) in (Error.BAD_ARGUMENTS, Error.MARSHALLING, Error.NO_NODE)
    assert image(tree) == before


def test_versions_are_compared() -> None:
    """-1 is every version; set counts up, and delete looks at it."""
    tree = Tree()
    make(tree, "/v")
    assert tree.set_data("/v", b"1", 0).version == 1
    assert refusal(tree.set_data, "/v", b"2", 0) == Error.BAD_VERSION
    assert tree.set_data("/v", b"3", -1).version == 2
    assert refusal(tree.delete, "/v", 1) == Error.BAD_VERSION
    assert refusal(tree.check, "/v", 1) == Error.BAD_VERSION
    tree.check("/v", 2)
    tree.delete("/v", 2)
    assert refusal(tree.check, "/v", 2) == Error.NO_NODE


def test_a_full_node_and_the_servers_own_stay() -> None:
    """What has children is not deleted, nor what every server has."""
    tree = Tree()
    make(tree, "/a")
    make(tree, "/a/b")
    assert refusal(tree.delete, "/a", -1) == Error.NOT_EMPTY
    assert refusal(tree.delete, "/zookeeper/quota", -1) == Error.BAD_ARGUMENTS
    assert refusal(tree.delete, "/", -1) == Error.BAD_ARGUMENTS


def test_containers_and_mortal_nodes_are_found() -> None:
    """A container that had children and has none, and a node that was left alone longer than its time."""
    tree = Tree()
    make(tree, "/fresh", Mode.CONTAINER)
    make(tree, "/used", Mode.CONTAINER)
    make(tree, "/full", Mode.CONTAINER)
    make(tree, "/used/x")
    make(tree, "/full/x")
    tree.delete("/used/x", -1)
    make(tree, "/ttl", Mode.TTL, ttl=100, now=1000)
    assert tree.expired(1100) == ["/used"]
    assert sorted(tree.expired(1101)) == ["/ttl", "/used"]
    assert tree.nodes["/used"].stat().owner == 0
    assert refusal(make, tree, "/no", Mode.TTL, ttl=0) == Error.BAD_ARGUMENTS


def test_acls_are_asked() -> None:
    """Creating and deleting is up to the parent, the rest to the node, and `auth` is the client's digests."""
    tree = Tree()
    tree.create("/joe", b"", [Acl(31, "auth", "")], Mode.PERSISTENT, credentials=[JOE])
    assert tree.nodes["/joe"].acl == (Acl(31, "digest", JOE.id),)
    assert refusal(make, tree, "/joe/x") == Error.NO_AUTH
    make(tree, "/joe/x", credentials=[JOE])
    assert refusal(tree.delete, "/joe/x", -1) == Error.NO_AUTH
    assert refusal(tree.set_data, "/joe", b"", -1) == Error.NO_AUTH
    assert refusal(tree.set_acl, "/joe", OPEN, -1) == Error.NO_AUTH
    assert refusal(tree.check, "/joe", -1) == Error.NO_AUTH
    assert tree.set_acl("/joe", OPEN, 0, credentials=[JOE]).aversion == 1
    tree.delete("/joe/x", -1)
    tree.delete("/joe", -1)


@pytest.mark.parametrize("acl", [("nope", "x"), ("world", "x"), ("digest", "x"), ("ip", "::1"), ("auth", "")])
def test_an_acl_that_nobody_matches_is_refused(acl: tuple[str, str]) -> None:
    """Nor is an empty one of use."""
    with pytest.raises(Refused):
        resolve([Acl(31, *acl)], [Credential("ip", "127.0.0.1")])
    with pytest.raises(Refused):
        resolve([], [JOE])


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
def test_what_is_rolled_back_never_was(before: list[Any], within: list[Any]) -> None:
    """Whatever a transaction did to whatever tree, taking it back leaves each field as it was."""
    tree = Tree()
    carry_out(tree, before, 1)
    tree.changes.clear()
    found = image(tree)
    tree.begin()
    carry_out(tree, within, 2)
    tree.roll_back()
    assert image(tree) == found


@given(STEPS)
def test_the_tree_holds_together(steps: list[Any]) -> None:
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
