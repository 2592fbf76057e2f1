"""The fixtures of the tests that run twice: on the dev server and on real ZooKeeper."""

from pathlib import Path

import pytest
from support.ensemble import Ensemble
from support.faults import connected, proxied, warmed
from support.primitives import KEY, LINGERING, LOCK, PRIMITIVES, READ, SEMAPHORE
from support.zoo import SESSION, namespace

from django_zklock.core.protocol.contender import wait_watchers
from django_zklock.core.queue.operator_hold import is_operator
from django_zklock.report import past
from django_zklock.testing.server import DevServer

CONTRACT = Path(__file__).parent

ON_BOTH = frozenset(
    [
        "admin/test_ensemble",
        "admin/test_waits",
        "celery/test_reservations",
        "compat/test_other_clients",
        "devserver/test_load",
        "leader/test_current_leader",
        "locks/test_all_kinds",
        "locks/test_core_alone",
        "operations/test_hold_clocks",
        "zk/test_kazoo_surface",
    ]
)
"""
Modules that `make test` runs on both servers.

All others are about the package's own calls, timers and threads. `make test` runs them on real ZooKeeper alone.
"""


@pytest.fixture(autouse=True)
def no_past(monkeypatch):
    """These tests have no database, so commands would say that they cannot read the past."""
    monkeypatch.setattr(past, "source", None)


ALL_KINDS = "test_all_kinds.py"
"""The module whose tests `make test` runs for each kind of lock, on real ZooKeeper."""
DISTINCT = (LOCK, READ, SEMAPHORE, LINGERING)
"""The kinds that `make test` takes elsewhere. The others differ from these in names and numbers only."""
ON_DEV = (LOCK, SEMAPHORE)
"""Those that it takes on the dev server."""


def pytest_generate_tests(metafunc):
    """Build a test for each server and kind of lock that the run wants; thousands would be thrown away otherwise."""
    option, path = metafunc.config.option, metafunc.definition.path
    is_whole = option.markexpr != "not chaos" or is_in(path, ON_BOTH)
    if is_free(metafunc, "server"):
        servers = ["dev", "real"] if is_whole else ["real"]
        metafunc.parametrize("server", ["dev"] if option.quick else servers, indirect=True)
    if is_free(metafunc, "primitive"):
        kinds = PRIMITIVES if is_whole else kinds_of(path, option.quick)
        metafunc.parametrize("primitive", kinds, ids=lambda primitive: primitive.name)


def is_free(metafunc, name):
    """Return whether a test has this parameter, and neither the test nor its module says what it is."""
    given = [mark.args[0] for mark in metafunc.definition.iter_markers("parametrize")]
    return name in metafunc.fixturenames and name not in given and not hasattr(metafunc.module, name)


def is_in(path, modules):
    return path.is_relative_to(CONTRACT) and str(path.relative_to(CONTRACT).with_suffix("")) in modules


@pytest.hookimpl(tryfirst=True)  # before pytest deselects by marker
def pytest_collection_modifyitems(config, items):
    """Leave to `make chaos` the second run of what depends little on the kind of server, or on the kind of lock."""
    for item in items:
        if not item.path.is_relative_to(CONTRACT) or not isinstance(item, pytest.Function):
            continue
        params = item.callspec.params if hasattr(item, "callspec") else {}
        on_dev = params.get("server") == "dev"
        is_left_out = on_dev and not is_in(item.path, ON_BOTH) and not config.option.quick
        if is_left_out or params.get("primitive", LOCK) not in kinds_of(item.path, on_dev):
            item.add_marker(pytest.mark.chaos(again=True))


def kinds_of(path, on_dev):
    """Return the kinds of locks for which `make test` runs a test."""
    if on_dev:
        return ON_DEV
    return PRIMITIVES if path.name == ALL_KINDS else DISTINCT


@pytest.fixture(scope="session")
def dev():
    """One dev server for the whole run, set up as the real one is."""
    with DevServer(max_session_timeout=SESSION) as server:
        yield server


@pytest.fixture
def server(request):
    """The dev server, or the real one; a run of the one alone does not start the other."""
    chosen = request.getfixturevalue("dev" if request.param == "dev" else "single")
    return chosen


@pytest.fixture
def zoo(server):
    """A namespace that the locks of this process are pointed to, and left empty at the end; on each server in turn."""
    with namespace(server) as zoo:
        yield zoo


@pytest.fixture
def key_directory(zoo):
    """Create the directory of `KEY`. A directory that was not created by a lock is not removed when it is empty."""
    zoo.client.ensure_path(f"{zoo.base}/{KEY}")


@pytest.fixture
def proxy(zoo, request):
    """A proxy between the locks of this process and the server; the session of 20 s, or `param`, is connected."""
    with proxied(zoo, getattr(request, "param", 20)) as proxy:
        connected()
        yield proxy


@pytest.fixture
def warm_proxy(zoo):
    """A proxy that counts requests: the session has nothing left to do, and the directory of `KEY` exists."""
    with warmed(zoo, KEY) as proxy:
        proxy.reset()
        yield proxy


@pytest.fixture
def no_rests(zoo):
    """Delete the operator holds at the end of the test; the processes that would do so may be dead."""
    yield
    for path in zoo.contenders():
        if is_operator(path.rpartition("/")[2]):
            zoo.client.delete(path, recursive=True)  # no error if it is gone by now


@pytest.fixture
def emptied(zoo):
    """All contenders that a test leaves are deleted at its end, even those that name another process."""
    yield
    for path in zoo.contenders():
        zoo.client.delete(path, recursive=True)  # no error if it is gone by now


@pytest.fixture(scope="session")
def pair():
    """The ports of a real server and of a dev server whose answers are compared, and which nobody else uses."""
    limits = {"min_session_timeout": 0.2, "max_session_timeout": 20.0, "tick": 0.1}
    with Ensemble(**limits) as real, DevServer(**limits) as dev:
        yield {"real": real.servers[0].port, "dev": dev.port}


@pytest.fixture
def told_waits():
    """Skip a test if nothing in the package tells others what a holder waits for: that is an extension."""
    if not wait_watchers:
        pytest.skip("no waits are told")
