"""One lock coordinator for the tests that leave it alive."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.ensemble import Ensemble
from support.serving import Serving
from support.zoo import Zoo


@pytest.fixture(scope="package")
def lasting_coordinator(single: Ensemble) -> Iterator[Serving]:
    with Zoo(single.hosts, single) as zoo, Serving(zoo, session_timeout=20) as coordinator:
        yield coordinator


@pytest.fixture
def coordinator(lasting_coordinator: Serving) -> Iterator[Serving]:
    with lasting_coordinator.zoo.configured():
        yield lasting_coordinator
        lasting_coordinator.zoo.assert_empty()
