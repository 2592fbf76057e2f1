"""The processes and the servers of the chaos tests."""

import contextlib

import pytest
from support.chaos.worker_pool import WorkerPool
from support.proxy import Proxy
from support.zoo import Zoo


@pytest.fixture
def ensemble(single):
    """The servers of a test; a module that needs others has a fixture of this name."""
    return single


@pytest.fixture
def arena(ensemble):
    with Zoo(ensemble.hosts, ensemble) as zoo:
        yield zoo


@pytest.fixture
def keys():
    return ("k",)


@pytest.fixture
def pool(request, arena, keys, tmp_path):
    with contextlib.closing(WorkerPool(arena, request.config.getoption("--lock"), tmp_path, keys)) as pool:
        yield pool


@pytest.fixture
def proxy(arena):
    with Proxy(arena.address) as proxy:
        yield proxy
        proxy.heal()


@pytest.fixture
def proxies(ensemble):
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(Proxy(server.address)) for server in ensemble.servers]
