"""ACLs that forbid something, as while ACLs are turned on."""

import contextlib

import pytest
from kazoo.security import OPEN_ACL_UNSAFE, make_acl

on_real_server = pytest.mark.parametrize("server", ["real"], indirect=True)
"""For tests whose ACLs forbid something: the dev server keeps ACLs, and forbids nothing."""

NO_DELETES = make_acl("world", "anyone", read=True, write=True, create=True, admin=True)


@contextlib.contextmanager
def no_deletes(zoo, key):
    """Refuse deletes in the queue of this key. At the end, wait until all that was refused has gone."""
    directory = f"{zoo.base}/{key}"
    zoo.client.ensure_path(directory)
    zoo.client.set_acls(directory, [NO_DELETES])
    try:
        yield
    finally:
        zoo.client.set_acls(directory, OPEN_ACL_UNSAFE)
        zoo.wait_contenders(key, 0)
