"""The dev server answers as ZooKeeper does: permissions and identities."""

from __future__ import annotations

import pytest
from support.jute import (
    ADD_RECURSIVE,
    ADMIN,
    ALL,
    CREATE,
    CREATOR,
    DELETE,
    READ,
    SEQUENTIAL,
    WRITE,
    add_watch,
    auth,
    buffer,
    check,
    children,
    children2,
    container,
    create,
    create2,
    delete,
    ephemerals,
    exists,
    get,
    get_acl,
    multi,
    put,
    set_acl,
    sync,
)
from support.transcripts import ALICE, Pair, Script, changed_in_3_9, compare, scripts, who_may
from support.wire import Talk

pytestmark = pytest.mark.zookeeper


@pytest.mark.parametrize("denied", [READ, WRITE, CREATE, DELETE, ADMIN])
@pytest.mark.parametrize("known", [False, True], ids=["anyone", "alice"])
def test_a_permission_is_needed(pair: Pair, denied: int, known: bool) -> None:
    """Each operation asks for its permission, of the node or of its parent, and for no other."""
    entries = who_may((ALL & ~denied, *ALICE), (ALL & ~denied, "world", "anyone"))

    @changed_in_3_9
    def ask(talk: Talk) -> None:
        a = talk.a
        if known:
            a.do(auth("alice:secret"))
        a.do(create("/a", b"", entries=entries), create("/a/b"), get("/a", True), exists("/a", True), children("/a"))
        a.do(children2("/a", True), put("/a", b"1"), get_acl("/a"), sync("/a"), multi(check("/a", 0)))
        a.do(("getAllChildrenNumber", buffer("/a")), add_watch("/a", ADD_RECURSIVE), ephemerals("/a"))
        a.do(multi(create("/x"), put("/a", b"2")), multi(create("/a/c")), delete("/a/b"), multi(delete("/a/b")))
        a.do(multi(get("/a"), children("/a"), op="multiRead"), container("/a/d"), create2("/a/e", b"", SEQUENTIAL))
        a.do(create("/a/no/x"), delete("/a/no"), put("/a", b"", 77), create("/a/b"))
        a.do(set_acl("/a", entries), exists("/a"))
        a.fence()

    compare(pair, ask)


@changed_in_3_9
def digest(talk: Talk) -> None:
    a = talk.a
    a.do(create("/early", entries=CREATOR), auth("alice:secret"), create("/mine", entries=who_may(*CREATOR)))
    a.do(get_acl("/mine"), get("/mine"), ("whoAmI", b""))
    talk.b.do(get("/mine"), get_acl("/mine"), exists("/mine"), put("/mine", b""), auth("alice:wrong"), get("/mine"))
    talk.b.do(auth("alice:secret"), get("/mine"), get_acl("/mine"), ("whoAmI", b""))
    talk.b.do(create("/both", entries=who_may(*CREATOR)), set_acl("/both", who_may((ALL, "auth", "x"))), get("/both"))
    talk.c.do(auth("alice:wrong"), get("/both"), put("/both", b"x"), set_acl("/both", who_may((READ, *ALICE))))
    talk.b.do(get_acl("/both"), put("/both", b"x"), get("/both"))


@scripts(digest)
def test_identities(pair: Pair, script: Script) -> None:
    """A digest is who one is, for all that the connection does from then on."""
    compare(pair, script)
