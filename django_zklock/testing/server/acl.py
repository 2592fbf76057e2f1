"""Check permissions: credentials, ACL entries and their schemes (world, auth, digest, ip)."""

from __future__ import annotations

import base64
import hashlib
import ipaddress
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from django_zklock.testing.server.codes import Error, Perm, Refused
from django_zklock.testing.server.records import Acl

OPEN: Final = (Acl(int(Perm.ALL), "world", "anyone"),)
READ_ONLY: Final = (Acl(int(Perm.READ), "world", "anyone"),)


class Credential(NamedTuple):
    """One proven identity of a connection."""

    scheme: str
    id: str


def digest(user_and_password: str) -> str:
    """Return the id of `user:password` in scheme digest: the name, and SHA-1 of both in base 64."""
    user = user_and_password.split(":", 1)[0]
    hashed = hashlib.sha1(user_and_password.encode("utf-8", "replace"), usedforsecurity=False).digest()
    return f"{user}:{base64.b64encode(hashed).decode('ascii')}"


def authenticate(scheme: str | None, auth: bytes | None, address: str) -> Credential:
    """Return the credential of an auth request. Raises Refused for an unknown scheme."""
    if scheme == "digest" and auth is not None:
        return Credential("digest", digest(auth.decode("utf-8", "replace")))
    if scheme == "ip":
        return Credential("ip", address)
    raise Refused(Error.AUTH_FAILED)


def resolve(acls: Sequence[Acl] | None, credentials: Iterable[Credential]) -> tuple[Acl, ...]:
    """
    Return the list that a node gets when a client sends `acls`.

    Duplicates are removed, and `auth` is replaced by the client's digests. Raises Refused for an empty list, for an
    entry that no client can match, and for `auth` if the client has no digest.
    """
    entries: dict[Acl, None] = {}
    for acl in acls or ():
        if acl.scheme == "auth":
            own = [credential for credential in credentials if credential.scheme != "ip"]
            if not own:
                raise Refused(Error.INVALID_ACL)
            entries.update({Acl(acl.perms, credential.scheme, credential.id): None for credential in own})
        elif _valid(acl.scheme, acl.id):
            entries[acl] = None
        else:
            raise Refused(Error.INVALID_ACL)
    if not entries:
        raise Refused(Error.INVALID_ACL)
    return tuple(entries)


def _valid(scheme: str, identity: str) -> bool:
    if scheme == "world":
        return identity == "anyone"
    if scheme == "digest":
        return len(identity.rstrip(":").split(":")) == 2
    return scheme == "ip" and _network(identity) is not None


def _network(identity: str) -> ipaddress.IPv4Network | None:
    try:
        return ipaddress.IPv4Network(identity, strict=False)  # ZooKeeper 3.8 accepts no others
    except ValueError:
        return None


def require(acls: Sequence[Acl], wanted: Perm, credentials: Iterable[Credential]) -> None:
    """Raise Refused unless `allows` returns True."""
    if not allows(acls, wanted, credentials):
        raise Refused(Error.NO_AUTH)


def allows(acls: Sequence[Acl], wanted: Perm, credentials: Iterable[Credential]) -> bool:
    """Return whether an entry grants one of the permissions `wanted` to the world or to one of `credentials`."""
    return any(
        acl.perms & wanted and (acl.scheme == "world" or any(_matches(acl, credential) for credential in credentials))
        for acl in acls
    )


def _matches(acl: Acl, credential: Credential) -> bool:
    if acl.scheme != credential.scheme:
        return False
    if acl.scheme == "ip":
        network = _network(acl.id)
        try:
            return network is not None and ipaddress.IPv4Address(credential.id) in network
        except ValueError:
            return False
    return acl.id == credential.id


def masked(acls: Sequence[Acl]) -> list[Acl]:
    """Return the list without password hashes, for clients that may not administer the node."""
    return [acl._replace(id=acl.id.split(":", 1)[0] + ":x") if acl.scheme == "digest" else acl for acl in acls]
