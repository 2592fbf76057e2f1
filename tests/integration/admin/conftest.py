"""The settings of the admin, for all tests of its pages."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.test import override_settings
from support import adminsite


@pytest.fixture(autouse=True)
def site() -> Iterator[None]:
    """Set what the admin needs: URLs, middleware and templates."""
    with override_settings(**adminsite.SETTINGS):
        yield
