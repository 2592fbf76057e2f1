"""A site on real ZooKeeper, a browser, and visitors."""

import contextlib

import pytest
from kazoo.exceptions import NoNodeError
from support.browser import chromium
from support.browser.actors import staged
from support.browser.pages import visiting
from support.browser.scene import busy_shop
from support.browser.site import Site
from support.proxy import Proxy
from support.zoo import Zoo


@pytest.fixture(scope="package")
def browser():
    """One browser for these tests. No longer: while it runs, no other test may use an event loop."""
    with chromium.started() as browser:
        yield browser


@pytest.fixture(scope="package")
def den(single):
    with Zoo(single.hosts, single) as zoo:
        yield zoo


@pytest.fixture(scope="package")
def wire(den):
    with Proxy(den.address) as proxy:
        yield proxy


@pytest.fixture(scope="package")
def site(den, wire, tmp_path_factory):
    with Site(tmp_path_factory.mktemp("site"), den.url(wire.address)) as site:
        yield site


@pytest.fixture
def visitor(browser, site, wire):
    with visiting(browser, site) as come:
        yield come
        wire.heal()


@pytest.fixture
def swept(den):
    with contextlib.suppress(NoNodeError):
        den.client.delete(den.base, recursive=True)
    yield den
    den.assert_empty()


@pytest.fixture
def stage(swept):
    with staged(swept) as stage:
        yield stage


@pytest.fixture
def day(stage):
    busy_shop(stage)
    return stage


@pytest.fixture
def hasty(stage, den, browser, tmp_path):
    with Site(tmp_path, den.url(), DEFAULTS={"warn_after": 0.001}) as site, visiting(browser, site) as come:
        yield come
