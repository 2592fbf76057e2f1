"""The dev server answers as ZooKeeper does: several operations in one request."""

from __future__ import annotations

import pytest
from support.jute import (
    Request,
    check,
    children,
    container,
    create,
    create2,
    delete,
    exists,
    get,
    multi,
    put,
)
from support.transcripts import Pair, compare
from support.wire import Talk, Wire

pytestmark = pytest.mark.zookeeper


GOOD = [create("/m", b""), create2("/n", b"2"), put("/a", b"new"), delete("/b"), check("/a", 1)]
BAD = {
    "exists already": create("/a", b""),
    "no parent": create("/no/x", b""),
    "no node": delete("/no"),
    "not empty": delete("/full"),
    "a version": put("/a", b"", 7),
    "a check": check("/no"),
    "a check of a version": check("/full", 3),
    "a container": container("/a"),
    "bad ACL": create("/x", b"", entries=()),
    "bad path": create("x", b""),
}


def prepare(wire: Wire) -> None:
    wire.do(create("/a"), create("/b"), create("/full"), create("/full/child"))


@pytest.mark.parametrize("wrong", BAD.values(), ids=BAD.keys())
@pytest.mark.parametrize("position", [0, 2, 5])
def test_multi_fails_as_a_whole(pair: Pair, position: int, wrong: Request) -> None:
    """Wherever it fails, each operation is answered with its error, and nothing of it was done."""

    def ask(talk: Talk) -> None:
        prepare(talk.a)
        talk.a.do(exists("/m", True), get("/a", True), multi(*GOOD[:position], wrong, *GOOD[position:]))
        talk.a.do(exists("/a"), exists("/b"), exists("/m"), exists("/n"), exists("/full"), children("/"))
        talk.a.do(multi(*GOOD))

    compare(pair, ask)
