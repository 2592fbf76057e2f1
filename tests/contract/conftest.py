"""The fixtures of the tests that run twice: on the dev server and on real ZooKeeper."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.primitives import PRIMITIVES, Primitive
from support.transcripts import REAPED, TICK, Pair
from support.zoo import Zoo, namespace

from django_zklock.queue.operators import is_operator
from django_zklock.testing.ensemble import Ensemble
from django_zklock.testing.server import DevServer

OWN_CODE = frozenset(
    [
        "test_abort",
        "test_abort_edges",
        "test_asyncio",
        "test_bounds_and_kinds",
        "test_budget",
        "test_family_faults",
        "test_gated",
        "test_hold_at_least",
        "test_horizon",
        "test_inspection",
        "test_leader",
        "test_lease",
        "test_lost_replies",
        "test_max_hold",
        "test_operations",
        "test_operations_lost",
        "test_over_holds",
        "test_revoke",
        "test_several",
        "test_supervisor",
    ]
)
"""Modules about the package's own calls, timers and threads. `make test` runs them on real ZooKeeper alone."""


@pytest.hookimpl(tryfirst=True)  # before pytest deselects by marker
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave to `make chaos` the second run of what depends little on the kind of server."""
    for item in items:
        params = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
        if item.path.stem in OWN_CODE and params.get("server") == "dev":
            item.add_marker(pytest.mark.chaos)


@pytest.fixture(scope="session")
def dev() -> Iterator[DevServer]:
    """One dev server for the whole run, set up as the real one is."""
    with DevServer() as server:
        yield server


@pytest.fixture(params=["dev", "real"])
def server(request: pytest.FixtureRequest) -> Ensemble | DevServer:
    """The dev server, and then the real one; a run of the one alone does not start the other."""
    found: Ensemble | DevServer = request.getfixturevalue("dev" if request.param == "dev" else "single")
    return found


@pytest.fixture
def zoo(server: Ensemble | DevServer) -> Iterator[Zoo]:
    """A namespace that the locks of this process are pointed to, and left empty at the end; on each server in turn."""
    with namespace(server) as zoo:
        yield zoo


@pytest.fixture(params=PRIMITIVES, ids=lambda primitive: primitive.name)
def primitive(request: pytest.FixtureRequest) -> Primitive:
    """Each kind of lock in turn."""
    found: Primitive = request.param
    return found


@pytest.fixture
def no_rests(zoo: Zoo) -> Iterator[None]:
    """What stays of holds goes at the end of the test; the processes that would see to that may be dead."""
    yield
    for path in zoo.contenders():
        if is_operator(path.rpartition("/")[2]):
            zoo.client.delete(path)


@pytest.fixture(scope="session")
def pair() -> Iterator[Pair]:
    """The ports of a real server and of a dev server whose answers are compared, and which nobody else uses."""
    # Without the property the real server refuses nodes with a time to live.
    java_options = ["-Dzookeeper.extendedTypesEnabled=true"]
    limits = {"min_session_timeout": 2 * TICK, "max_session_timeout": 20.0, "container_check": REAPED, "tick": TICK}
    with Ensemble(java_options=java_options, **limits) as real, DevServer(**limits) as dev:  # type: ignore[arg-type]
        yield {"real": real.servers[0].port, "dev": dev.port}
