"""Install what the clients in Go, Java and Node need, where that is allowed: tests in a namespace have no network."""

from support import debian
from support.lease_clients import Unavailable, find_go, find_grpc_java, install_node_client

if __name__ == "__main__" and debian.may_install():
    debian.ensure(find_go, find_grpc_java)
    try:
        install_node_client()
    except Unavailable as problem:
        print(problem)
