"""Databases with fenced rows: SQLite and PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pytest_django import DjangoDbBlocker
from support.databases import database, sqlite
from support.postgres import Postgres


@pytest.fixture(params=["sqlite", "postgres"])
def database_settings(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    """Return the settings of a database of this kind."""
    if request.param == "sqlite":
        return sqlite(tmp_path / "ledger.sqlite3")
    server: Postgres = request.getfixturevalue("postgres")
    return server.settings


@pytest.fixture
def ledger(database_settings: dict[str, Any], django_db_blocker: DjangoDbBlocker) -> Iterator[str]:
    """The alias of such a database, with empty tables. Nothing is rolled back at the end of the test."""
    with django_db_blocker.unblock(), database(database_settings) as alias:
        yield alias
