"""Data of a server that ran for years: a snapshot file, as from 3.5 on, with the numbers of the next children."""

import contextlib
import time
import zlib

from support.ensemble import Ensemble
from support.jute import buffer, integer, long
from support.zoo import Zoo

LARGEST = 2**31 - 1
SMALLEST = -(2**31)

MAGIC = 0x5A4B534E  # "ZKSN"
VERSION = 2
NO_DATABASE = -1
ANYBODY = -1  # OPEN_ACL_UNSAFE, which needs no entry in the table of ACLs
NOBODY = 0  # the owner of a node that is not ephemeral
NEVER = 0  # the transaction that made the nodes; the server goes on with 1


def prepare(directory, sequences):
    """Write the data of `Ensemble(directory=directory)`; `sequences` has the number of the next child of each path."""
    nodes = {}
    for path in ("/zookeeper/config", "/zookeeper/quota"):
        nodes.update((above, _node(0)) for above in _ancestors(path))
    for path, following in sequences.items():
        nodes.update((above, _node(1)) for above in _ancestors(path) if above != path and above not in sequences)
        nodes[path] = _node(following)
    folder = directory / "server-1" / "data" / "version-2"
    folder.mkdir(parents=True)
    (folder / "snapshot.0").write_bytes(_snapshot(nodes))


@contextlib.contextmanager
def serving(directory, base, numbers):
    prepare(directory, {f"{base}/{key}": number for key, number in numbers.items()})
    with Ensemble(nodes=1, directory=directory) as ensemble:
        yield ensemble


@contextlib.contextmanager
def kept_arena(ensemble, chroot):
    """Yield the namespace with the high numbers. It is not deleted at the end."""
    zoo = Zoo(ensemble.hosts, ensemble)
    zoo.chroot, zoo.base = chroot, f"{chroot}/zklock"
    yield zoo
    zoo.chroot = f"{chroot}/none"
    zoo.close()


def _ancestors(path):
    yield ""
    for end, letter in enumerate(path[1:] + "/", start=1):
        if letter == "/":
            yield path[:end]


def _snapshot(nodes):
    """The file: header, no sessions, no ACLs, the nodes with parents first, and what tells it from a torn one."""
    header = integer(MAGIC) + integer(VERSION) + long(NO_DATABASE)
    no_sessions, no_acls = integer(0), integer(0)
    tree = b"".join(buffer(path) + nodes[path] for path in sorted(nodes))
    content = header + no_sessions + no_acls + tree + buffer("/")
    return content + long(zlib.adler32(content)) + buffer("/")


def _node(children_ever):
    now = long(int(time.time() * 1000))
    transactions = long(NEVER) * 2  # czxid, mzxid
    versions = integer(0) + integer(children_ever) + integer(0)  # version, cversion, aversion
    return buffer(b"") + long(ANYBODY) + transactions + now * 2 + versions + long(NOBODY) + long(NEVER)
