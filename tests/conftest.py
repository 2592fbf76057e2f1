"""Fixtures that most tests share: a real ZooKeeper, and a namespace in it for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.zoo import Zoo

from django_zklock.testing.ensemble import Ensemble


@pytest.fixture(scope="session")
def single() -> Iterator[Ensemble]:
    """One server for the whole run; a test that stops or pauses it starts or resumes it again."""
    with Ensemble(nodes=1) as ensemble:
        yield ensemble


@pytest.fixture(scope="session")
def three() -> Iterator[Ensemble]:
    """Three servers for the whole run; a test that stops or pauses one starts or resumes it again."""
    with Ensemble(nodes=3) as ensemble:
        yield ensemble


@pytest.fixture
def zoo(single: Ensemble) -> Iterator[Zoo]:
    """A namespace on the single server that the locks of this process are pointed to, and left empty at the end."""
    zoo = Zoo(single.hosts, single)
    try:
        with zoo.configured():
            yield zoo
            zoo.assert_empty()
    finally:
        zoo.close()
