"""A plugin for `make chaos`: its options, and the trial of the harness, which must convict kazoo's lock."""

import random

import pytest


def pytest_addoption(parser):
    group = parser.getgroup("chaos", "locks under faults")
    group.addoption("--lock", choices=["zklock", "kazoo"], default="zklock", help="the lock under test")
    group.addoption("--soak-seconds", type=float, default=60.0, help="how long the soak lasts (60)")
    group.addoption("--soak-seed", type=int, help="the seed of the soak's faults (drawn and shown)")


def pytest_configure(config):
    config.addinivalue_line("markers", "chaos: left to `make chaos`, or to `make browser`")
    config.addinivalue_line("markers", "convicts_kazoo: fails with kazoo's own Lock (`make chaos LOCK=kazoo`)")
    if hasattr(config, "workerinput"):  # a process of pytest-xdist
        config.option.soak_seed = config.workerinput["soak_seed"]
    elif config.option.soak_seed is None:
        config.option.soak_seed = random.SystemRandom().randrange(2**32)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node):
    """Give all processes of a run the same seed."""
    node.workerinput["soak_seed"] = node.config.option.soak_seed


def pytest_report_header(config):
    return f"lock under test: {config.option.lock}; --soak-seed={config.option.soak_seed}"


def pytest_collection_modifyitems(config, items):
    if config.option.lock == "kazoo":
        config.hook.pytest_deselected(items=[item for item in items if not item.get_closest_marker("convicts_kazoo")])
        items[:] = [item for item in items if item.get_closest_marker("convicts_kazoo")]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Turn the verdict round for kazoo's lock: an assertion of the test itself convicts, no other error."""
    report = yield
    if item.config.option.lock == "kazoo" and not (call.when == "setup" and report.passed):
        convicted = call.excinfo is not None and call.excinfo.errisinstance(AssertionError)
        report.outcome = "passed" if call.when == "teardown" or (call.when == "call" and convicted) else "failed"
        report.longrepr = report.longrepr or "kazoo's lock kept the promise of this test"
    return report
