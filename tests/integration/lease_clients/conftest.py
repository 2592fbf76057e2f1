"""One lock coordinator for the tests that leave it alive."""

import pytest
from support.serving import Serving
from support.zoo import Zoo


@pytest.fixture(scope="package")
def lasting_coordinator(single):
    with Zoo(single.hosts, single) as zoo, Serving(zoo, session_timeout=20) as coordinator:
        yield coordinator


@pytest.fixture
def coordinator(lasting_coordinator):
    with lasting_coordinator.zoo.configured():
        yield lasting_coordinator
        lasting_coordinator.zoo.assert_empty()
