"""A site on real ZooKeeper, a browser, and visitors."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kazoo.exceptions import NoNodeError
from playwright.sync_api import Browser
from support.browser import chromium
from support.browser.actors import Stage, staged
from support.browser.pages import Visit, visiting
from support.browser.scene import busy_shop
from support.browser.site import Site
from support.ensemble import Ensemble
from support.proxy import Proxy
from support.zoo import Zoo


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """One browser for these tests. No longer: while it runs, no other test may use an event loop."""
    with chromium.started() as browser:
        yield browser


@pytest.fixture(scope="package")
def den(single: Ensemble) -> Iterator[Zoo]:
    with Zoo(single.hosts, single) as zoo:
        yield zoo


@pytest.fixture(scope="package")
def wire(den: Zoo) -> Iterator[Proxy]:
    with Proxy(den.address) as proxy:
        yield proxy


@pytest.fixture(scope="package")
def site(den: Zoo, wire: Proxy, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with Site(tmp_path_factory.mktemp("site"), den.url(wire.address)) as site:
        yield site


@pytest.fixture
def visitor(browser: Browser, site: Site, wire: Proxy) -> Iterator[Visit]:
    with visiting(browser, site) as come:
        yield come
        wire.heal()


@pytest.fixture
def swept(den: Zoo) -> Iterator[Zoo]:
    with contextlib.suppress(NoNodeError):
        den.client.delete(den.base, recursive=True)
    yield den
    den.assert_empty()


@pytest.fixture
def stage(swept: Zoo) -> Iterator[Stage]:
    with staged(swept) as stage:
        yield stage


@pytest.fixture
def day(stage: Stage) -> Stage:
    busy_shop(stage)
    return stage


@pytest.fixture
def hasty(stage: Stage, den: Zoo, browser: Browser, tmp_path: Path, monkeypatch: Any) -> Iterator[Visit]:
    monkeypatch.setenv("SITE_LONG_HELD", "0.001")
    with Site(tmp_path, den.url()) as site, visiting(browser, site) as come:
        yield come
