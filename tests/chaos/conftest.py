"""The processes and the servers of the chaos tests."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.chaos.worker_pool import WorkerPool
from support.ensemble import Ensemble
from support.proxy import Proxy
from support.zoo import Zoo


@pytest.fixture
def ensemble(single: Ensemble) -> Ensemble:
    """The servers of a test; a module that needs others has a fixture of this name."""
    return single


@pytest.fixture
def arena(ensemble: Ensemble) -> Iterator[Zoo]:
    with Zoo(ensemble.hosts, ensemble) as zoo:
        yield zoo


@pytest.fixture
def keys() -> tuple[str, ...]:
    return ("k",)


@pytest.fixture
def pool(request: pytest.FixtureRequest, arena: Zoo, keys: tuple[str, ...], tmp_path: Path) -> Iterator[WorkerPool]:
    with contextlib.closing(WorkerPool(arena, request.config.getoption("--lock"), tmp_path, keys)) as pool:
        yield pool


@pytest.fixture
def proxy(arena: Zoo) -> Iterator[Proxy]:
    with Proxy(arena.address) as proxy:
        yield proxy
        proxy.heal()


@pytest.fixture
def proxies(ensemble: Ensemble) -> Iterator[list[Proxy]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(Proxy(server.address)) for server in ensemble.servers]
