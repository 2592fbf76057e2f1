"""Fixtures of the tests with Django: databases, projects of a user, and three servers that can be broken."""

import contextlib
import uuid

import pytest
from kazoo.exceptions import NoNodeError
from support.databases import sqlite
from support.ledger import Ledger
from support.project import Project
from support.waits import Waits

from django_zklock.contrib.events import table
from django_zklock.core.queue import escaping, nodes


@pytest.fixture(autouse=True)
def no_past():
    """Forget what earlier tests have read from the tables. A database that was rolled back has no cards."""
    table._recent.clear()


@pytest.fixture(params=["sqlite", "postgres", "mariadb-read committed", "mariadb-repeatable read"])
def database_settings(request, tmp_path):
    kind, _, isolation_level = request.param.partition("-")
    if kind == "sqlite":
        return sqlite(tmp_path / "database.sqlite3")
    server = request.getfixturevalue(kind)
    if isolation_level == "pool":
        pytest.importorskip("psycopg_pool")
        return {**server.settings, "OPTIONS": {"pool": {"min_size": 0, "max_size": 2, "timeout": 5}}}
    settings = server.settings(isolation_level) if isolation_level else server.settings
    return settings


@pytest.fixture
def ledger(tmp_path, django_db_blocker):
    """A SQLite database in a file. Its transactions are real, and none may be open at the end."""
    with django_db_blocker.unblock(), Ledger.opened("ledger", tmp_path) as ledger:
        yield ledger


@pytest.fixture
def audit(tmp_path, django_db_blocker):
    with django_db_blocker.unblock(), Ledger.opened("audit", tmp_path) as audit:
        yield audit


@pytest.fixture
def contend(zoo):
    """Put contenders of web-1, web-2, ... into queues, or of other processes; they are gone at the end."""
    paths = []
    waits = Waits(zoo.client)

    def join(key, number=1, **more):
        process = {"host": f"web-{number}", "pid": 70 + number, "thread": "MainThread", "what": ""}
        guid = str(uuid.uuid4())
        payload = nodes.Payload(guid=guid, **{"since": "", "template": key, **process, **more})
        path = f"{escaping.path(zoo.base, key)}/{nodes.prefix(guid)}"
        paths.append(zoo.client.create(path, payload.encode(), ephemeral=True, sequence=True, makepath=True))
        if payload.owner:
            waits.joined((payload.host, payload.pid, payload.owner), key, guid, paths[-1])
        return paths[-1]

    yield join
    for path in paths:
        with contextlib.suppress(NoNodeError):
            zoo.client.delete(path)


@pytest.fixture
def project(tmp_path):
    return Project(tmp_path)
