"""Fixtures that most tests share: a real ZooKeeper, and a namespace in it for each test."""

import contextlib
import gc
import math
import os
import re
import sys
from collections import Counter
from pathlib import Path

import pytest
from django.utils import translation
from hypothesis import HealthCheck, settings
from support import debian, foreign_calls, programs, reply_timeout
from support.brokers import RabbitMQ, Redis
from support.drill import Drill
from support.ensemble import Ensemble
from support.mariadb import MariaDB
from support.neighbours.curator import curator
from support.neighbours.protocol import kazoo
from support.postgres import Postgres
from support.zoo import ROOM, SESSION, TESTS, Zoo, namespace
from xdist.scheduler import LoadFileScheduling

from django_zklock import inspection
from django_zklock.core import hooks, log
from django_zklock.exceptions import LockLostInterrupt
from django_zklock.signals import lock_lost
from django_zklock.testing import order

pytest_plugins = ["support.chaos.report"]

gc.disable()  # until all tests are collected: each sweep would look at thousands of them, and find no garbage
os.environ.pop("COLUMNS", None)  # some runners set it, and tables fit into it

# How long an example takes depends on the load of the machine. The same examples in every run: a test that passed
# yesterday fails today only if the code changed.
settings.register_profile("zklock", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("zklock")


PLACES = {"unit": 2, "chaos": 3}
"""
The order of the tiers; all others are at 1, mixed: some use the processor, others wait.

What takes long comes first, so that several workers, each with a file or a folder, end at about the same time.
"""


TOGETHER = tuple(
    f"tests/{folder}/"
    for folder in ("browser", "integration/brokers", "integration/celery", "integration/lease_clients")
)
"""Folders whose tests run first, each in one worker, as they share what takes long to start."""


PER_PROCESS = 900 * 2**20  # bytes


class FilesOrFolders(LoadFileScheduling):
    """Gives each worker one file after the other, or one folder of those that stay together."""

    def _split_scope(self, nodeid):
        file = super()._split_scope(nodeid)
        return next((folder for folder in TOGETHER if file.startswith(folder)), file)


@pytest.hookimpl(optionalhook=True)  # with `-p no:xdist` it is unknown
def pytest_xdist_auto_num_workers():
    """As many processes as the memory has room for, with what their tests start; at most 11, as many tests wait."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for file in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):  # of a container
        with contextlib.suppress(OSError, ValueError):
            limits.append(int(Path(file).read_text()))
    return max(1, min(11, min(limits) // PER_PROCESS))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Distribute tests in this way, whatever `--dist` says."""
    return FilesOrFolders(config, log)


@pytest.hookimpl(trylast=True)  # after pytest, which makes such an error of any exception
def pytest_configure():
    """Let an abort strike a callback of the garbage collector: Python swallows it there, and it comes again."""
    report = sys.unraisablehook

    def unless_abort(swallowed):
        if not isinstance(swallowed.exc_value, LockLostInterrupt):
            report(swallowed)

    sys.unraisablehook = unless_abort


def pytest_addoption(parser):
    parser.addoption("--quick", action="store_true", help="the dev server alone: no Java, no broker, no database")


def pytest_sessionstart():
    """Each test has a namespace of its own, so the orders of locks in two tests say nothing together."""
    os.environ.pop(order.FILE, None)
    hooks.watchers.clear()


def pytest_ignore_collect(collection_path, config):
    """Do not even import the tests in a folder named `chaos` in a run without them: each worker would."""
    without = config.option.markexpr == "not chaos"
    return True if without and "chaos" in collection_path.relative_to(TESTS).parts else None


def pytest_pycollect_makeitem(collector, name, obj):
    """Do not build the parameters of a function that this run leaves out."""
    if collector.config.option.markexpr != "not chaos" or not name.startswith("test"):
        return None
    of_module = getattr(collector.getparent(pytest.Module).obj, "pytestmark", [])
    marks = [*(of_module if isinstance(of_module, list) else [of_module]), *getattr(obj, "pytestmark", [])]
    return [] if any(mark.name == "chaos" for mark in marks) else None


def on_real(item):
    return "callspec" in vars(item) and item.callspec.params.get("server") == "real"


SERVERS = frozenset(("single", "three", "pair", "jvm", "plain_kazoo", "postgres", "mariadb", "redis", "rabbitmq"))
"""Fixtures that start programs, which a quick run leaves out."""


@pytest.hookimpl(tryfirst=True)  # before pytest deselects by marker
def pytest_collection_modifyitems(config, items):
    """Run tests in random order, but for some tiers. All tests in a folder named `chaos` are marked so."""
    if config.option.quick:
        items[:] = [
            item for item in items if SERVERS.isdisjoint(getattr(item, "fixturenames", ())) and not on_real(item)
        ]
    items.sort(key=lambda item: 0 if item.nodeid.startswith(TOGETHER) else PLACES.get(item.nodeid.split("/")[1], 1))
    for item in items:
        if "/chaos/" in item.nodeid:
            item.add_marker(pytest.mark.chaos)


def pytest_collection_finish():
    """Leave thousands of collected tests out of each garbage collection: the sweeps ask for hundreds."""
    gc.freeze()
    gc.enable()


USES_GRPC = re.compile("lease|coordinator|lasting_holds|other_languages")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item, nextitem):
    """
    Collect garbage after each file that may use gRPC. Its thread ends with its last object.

    It would end in another test, which may count threads, or in a forked child, which dies of it, as it has no thread.
    """
    reported = yield
    if (nextitem is None or nextitem.path != item.path) and USES_GRPC.search(item.nodeid):
        gc.collect()
    return reported


@contextlib.contextmanager
def skipping():
    """Skip a test whose program is missing, unless all are wanted."""
    try:
        yield
    except debian.NotInstalled as problem:
        if debian.all_wanted():
            raise AssertionError(f"{problem}: {debian.advice([problem])}") from problem
        pytest.skip(str(problem))


@pytest.hookimpl(wrapper=True, tryfirst=True)  # before fixtures, which may start processes
def pytest_runtest_setup(item):
    """
    Add `ROOM` to the time that a call which does not wait gives ZooKeeper for its answer, unless the test judges time.

    On a busy machine, an answer may take longer. A test that ran into this limit would be red with nothing wrong.
    """
    # One that is left to `make chaos` only as it runs on a second kind of server judges no more than the first.
    marks = [mark for name in ("chaos", "timed") for mark in item.iter_markers(name) if "again" not in mark.kwargs]
    os.environ[reply_timeout.ADDED] = "0" if marks else str(min(ROOM, 5.0))
    with skipping():
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    """Skip the test, too, if it starts the program itself."""
    with skipping():
        yield


def pytest_terminal_summary(terminalreporter):
    """List what was skipped, and why, and how to install what was missing."""
    skipped = terminalreporter.stats.get("skipped", [])
    reasons = Counter(report.longrepr[2].removeprefix("Skipped: ") for report in skipped)
    if not reasons:
        return
    terminalreporter.section("skipped")
    for reason, count in reasons.most_common():
        terminalreporter.line(f"{count:5}  {reason}")
    if missing := [problem for find in programs.FINDS if (problem := debian.missing(find))]:
        terminalreporter.line(f"To run more of them: {debian.advice(missing)}")


@pytest.fixture(autouse=True)
def own_language():
    """A request in another language, by Django's client, leaves it to its thread."""
    translation.deactivate()


@pytest.fixture(scope="session", autouse=True)
def foreign_calls_file(tmp_path_factory):
    """Have this process, and those that the tests start, record foreign code that runs on the protocol's threads."""
    os.environ[foreign_calls.FILE] = str(tmp_path_factory.mktemp("foreign") / "calls")
    foreign_calls.install()


@pytest.fixture(autouse=True)
def no_look_in_the_background(monkeypatch):
    """No page has a thread look at the locks of a test that is over, or at its database while the test writes."""
    from django_zklock.report import background

    monkeypatch.setattr(background, "EVERY", math.inf)
    background.last.clear()


@pytest.fixture(autouse=True)
def no_foreign_calls(foreign_calls_file):
    """Fail a test in which a log handler, a receiver or a hook of warnings ran on a protocol thread."""
    yield
    calls = foreign_calls.recorded()
    assert not calls, calls


@pytest.fixture
def caplog(caplog, monkeypatch):
    """Give the records of the protocol's threads, too, which are handled a little later."""
    handler = vars(type(caplog))["handler"].fget

    def flushed(self):
        log.flush(ROOM)
        return handler(self)

    monkeypatch.setattr(type(caplog), "handler", property(flushed))
    return caplog


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """Add `ROOM` to the limits in the process of the tests, too."""
    seconds = float(os.environ[reply_timeout.ADDED])
    reply_timeout.add(seconds, monkeypatch.setattr)
    for ask in (inspection.check_quorum, inspection.ensemble, inspection.look_at, inspection.snapshot):
        defaults = ask.__kwdefaults__
        monkeypatch.setitem(defaults, "reply_timeout", defaults["reply_timeout"] + seconds)


@pytest.fixture(scope="session")
def single():
    """One server for the whole run; a test that stops or pauses it starts or resumes it again."""
    with Ensemble(nodes=1, max_session_timeout=SESSION) as ensemble:
        yield ensemble


@pytest.fixture(scope="session")
def three():
    """Three servers for the whole run; a test that stops or pauses one starts or resumes it again."""
    with Ensemble(nodes=3, max_session_timeout=SESSION) as ensemble:
        yield ensemble


@pytest.fixture
def zoo(single):
    """A namespace on the single server that the locks of this process are pointed to, and left empty at the end."""
    with namespace(single) as zoo:
        yield zoo


@pytest.fixture
def drill(single, tmp_path):
    """A site with its operator on the single server, whose processes a test starts."""
    with Zoo(single.hosts, single) as zoo, Drill(zoo, tmp_path / "site") as drill:
        yield drill


def for_the_run(server):
    """Return a fixture: this server for the whole run; without its program, the tests are skipped."""

    @pytest.fixture(scope="session")
    def running():
        with server() as started:
            yield started

    return running


postgres, mariadb, redis, rabbitmq = map(for_the_run, (Postgres, MariaDB, Redis, RabbitMQ))


@pytest.fixture(scope="session")
def jvm(single):
    """A process of Apache Curator's on the single server, for the tests that leave it alive."""
    with curator(single.hosts) as process:
        yield process


@pytest.fixture(scope="session")
def plain_kazoo(single):
    """A process of kazoo's, without anything of ours, for the tests that leave it alive."""
    with kazoo(single.hosts) as process:
        yield process


@pytest.fixture
def reports():
    """The `lock_lost` signals of a test."""
    received = []

    def receive(**kwargs):
        received.append(kwargs)

    lock_lost.connect(receive, weak=False)
    yield received
    lock_lost.disconnect(receive)


@pytest.fixture
def worker(shared_worker):
    """The worker that the tests of a folder or a module share, with nothing left in the queues at the end."""
    with shared_worker.log_shown():
        try:
            yield shared_worker
        finally:
            shared_worker.open_gates()
        shared_worker.zoo.assert_empty()
