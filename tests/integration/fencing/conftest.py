"""Databases with fenced rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pytest_django import DjangoDbBlocker
from support.databases import database


@pytest.fixture
def ledger(database_settings: dict[str, Any], django_db_blocker: DjangoDbBlocker) -> Iterator[str]:
    """The alias of such a database, with empty tables. Nothing is rolled back at the end of the test."""
    with django_db_blocker.unblock(), database(database_settings) as alias:
        yield alias
