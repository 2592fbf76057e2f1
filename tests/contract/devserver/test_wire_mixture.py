"""The dev server answers as ZooKeeper does: any requests in any order."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from support.jute import (
    ADD_PERSISTENT,
    ADD_RECURSIVE,
    ALL,
    ANY,
    CHILDREN,
    DATA,
    EPHEMERAL,
    EPHEMERAL_SEQUENTIAL,
    OPEN,
    PERSISTENT,
    READ,
    SEQUENTIAL,
    Request,
    add_watch,
    auth,
    check,
    children,
    children2,
    create,
    create2,
    delete,
    ephemerals,
    exists,
    get,
    get_acl,
    multi,
    put,
    remove_watches,
    set_acl,
    set_watches,
    sync,
)
from support.transcripts import ALICE, Pair, changed_in_3_9, compare, who_may
from support.wire import Talk, Wire

pytestmark = pytest.mark.zookeeper


NAMES = ["/d/a", "/d/b", "/d/a/x", "/d/a/y", "/d/a/x/z", "/d/b/x"]
ACLS = [OPEN, OPEN, OPEN, who_may((ALL, *ALICE), (READ, "world", "anyone")), who_may((ALL & ~READ, "world", "anyone"))]


def anything(chance: random.Random) -> Request:
    """A request on one of a few nodes, of which some are there."""
    path = chance.choice(NAMES)
    version = chance.choice([-1, -1, -1, 0, 1, 2])
    watch = chance.random() < 0.5
    mode = chance.choice([PERSISTENT, PERSISTENT, EPHEMERAL, SEQUENTIAL, EPHEMERAL_SEQUENTIAL])
    writes: list[Callable[[], Request]] = [
        lambda: create(path, chance.choice([b"", None, b"data"]), mode),
        lambda: create2(path, b"2", mode),
        lambda: delete(path, version),
        lambda: put(path, chance.choice([b"", None, b"longer data"]), version),
    ]
    reads: list[Callable[[], Request]] = [
        lambda: exists(path, watch),
        lambda: get(path, watch),
        lambda: children(path, watch),
        lambda: children2(path, watch),
        lambda: ephemerals(path),
        lambda: sync(path),
        lambda: remove_watches(path, chance.choice([CHILDREN, DATA, ANY])),
        lambda: set_acl(path, chance.choice(ACLS), version),
        lambda: get_acl(path),
        lambda: add_watch(path, chance.choice([ADD_PERSISTENT, ADD_RECURSIVE])),
    ]
    if chance.random() < 0.15:
        writes.append(lambda: check(path, version))
        parts = [chance.choice(writes)() for _ in range(chance.randrange(4))]
        return multi(*parts, *[check(chance.choice(NAMES))] * (chance.random() < 0.2))
    return chance.choice([*writes, *writes, *reads])()


@pytest.mark.parametrize("seed", range(12))
def test_any_mixture_of_requests_is_answered_as_by_zookeeper(pair: Pair, seed: int) -> None:
    """Three clients who do anything in any order, one of whom reconnects now and then, are told the same."""

    @changed_in_3_9
    def ask(talk: Talk) -> None:
        chance = random.Random(seed)
        talk.a.do(create("/d"))
        talk.b.do(auth("alice:secret"))
        for _ in range(250):
            name = chance.choice("abc")
            wire: Wire = getattr(talk, name)
            chosen = chance.random()
            if chosen < 0.02:
                again = talk.join(name, session=wire.session, password=wire.password, zxid=wire.last_zxid)
                paths = [chance.sample(NAMES, 3) for _ in range(5)]
                again.ask(set_watches(wire.last_zxid - chance.randrange(10), *paths))
            elif chosen < 0.03:
                before = len(talk.lines)
                wire.end()
                for other in set("abc") - {name}:
                    getattr(talk, other).fence()
                talk.lines[before:] = sorted(talk.lines[before:])  # its ephemerals go in no order
                talk.join(name)
            elif chosen < 0.1:
                # Without setACL: the real server judges what comes right behind it by the old ACL, if it is quick.
                requests = [anything(chance) for _ in range(5)]
                wire.pipeline(*[request for request in requests if request[0] != "setACL"])
            else:
                wire.ask(anything(chance))
            for other in "abc":
                getattr(talk, other).fence()

    compare(pair, ask)
