"""Databases with fenced rows."""

import pytest
from support.databases import database


@pytest.fixture
def ledger(database_settings, django_db_blocker):
    """The alias of such a database, with empty tables. Nothing is rolled back at the end of the test."""
    with django_db_blocker.unblock(), database(database_settings) as alias:
        yield alias
