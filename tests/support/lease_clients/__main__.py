"""Install what the clients in Go and Java need, where that is allowed."""

from __future__ import annotations

from support import debian
from support.lease_clients import find_go, find_grpc_java

if __name__ == "__main__" and debian.may_install():
    debian.ensure(find_go, find_grpc_java)
