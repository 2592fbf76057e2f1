"""MariaDB tables that were made before names were compared byte by byte are set right by `migrate`, with all rows."""

import re
from contextlib import closing, contextmanager
from datetime import datetime, timezone

import pymysql
import pytest
from django.db import connections, migrations, models
from django.db.migrations.executor import MigrationExecutor
from support.databases import configured

from django_zklock.contrib.events.models import Attempt
from django_zklock.contrib.fences.models import Fence
from django_zklock.contrib.fences.rows import advance, try_advance
from django_zklock.fencing.model import ExactCharField

pytestmark = pytest.mark.chaos  # it makes all tables four times

APPS = ("zklock_fences", "zklock_events")
BEFORE = (("zklock_fences", "0001_initial"), ("zklock_events", "0004_attempt_missed_at_count"))
FENCES = {"feed/1": 7, "feed/%C3%A9": 2**62, "straße": 3, "z" * 255: 1}
TABLES = ("zklock_fences_fence", "zklock_events_attempt")


@contextmanager
def empty_database(server, name):
    with closing(pymysql.connect(host="127.0.0.1", port=server.port)) as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {name} CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci")
        settings = {**server.settings("read committed"), "NAME": name}
        try:
            with configured(name, settings):
                yield name
        finally:
            cursor.execute(f"DROP DATABASE {name}")


def migrate(alias, targets=(), *, as_before=False):
    executor = MigrationExecutor(connections[alias])
    for app in APPS if as_before else ():
        first = executor.loader.disk_migrations[app, "0001_initial"]
        vars(first)["operations"] = [plain(operation) for operation in first.operations]
    executor.migrate([*targets] or [leaf for app in APPS for leaf in executor.loader.graph.leaf_nodes(app)])


def plain(operation):
    """Return the creation of a table as it was before there was `ExactCharField`."""

    def before(field):
        _name, _path, args, kwargs = field.deconstruct()
        return models.CharField(*args, **kwargs) if isinstance(field, ExactCharField) else field

    fields = [(name, before(field)) for name, field in operation.fields]
    assert any(type(field) is models.CharField for _, field in fields)
    return migrations.CreateModel(operation.name, fields, operation.options)


def rows(alias, statement):
    with connections[alias].cursor() as cursor:
        cursor.execute(statement)
        return list(cursor.fetchall())


def described(alias):
    created = (str(rows(alias, f"SHOW CREATE TABLE {table}")) for table in TABLES)
    return [re.sub(r"AUTO_INCREMENT=\d+ ", "", table) for table in created]


@pytest.mark.usefixtures("unblocked")
def test_an_older_table_of_mariadb_becomes_as_a_new_one_and_keeps_all_rows(mariadb):
    moment = datetime(2026, 11, 1, tzinfo=timezone.utc)
    with empty_database(mariadb, "older") as older, empty_database(mariadb, "newer") as newer:
        migrate(older, BEFORE, as_before=True)
        migrate(newer)
        assert [first != second for first, second in zip(described(older), described(newer), strict=True)] == [True] * 2
        for name, token in FENCES.items():
            advance(name, token, older)
        assert try_advance("FEED/1", 6, older) == 7, "the older table takes both names for one"
        attempt = Attempt(key="Feed/1", template="Feed/{id}", kind="lock", at=moment, pid=7, outcome=Attempt.HELD)
        attempt.save(using=older)
        migrate(older)
        assert described(older) == described(newer)
        assert dict(Fence.objects.using(older).values_list("name", "token")) == FENCES
        assert Attempt.objects.using(older).get(key="Feed/1", template="Feed/{id}").at == moment
        assert not Attempt.objects.using(older).filter(key="feed/1").exists()
        for name, token in FENCES.items():
            assert try_advance(name, token - 1, older) == token
            advance(name, token + 1, older)
        for name in ("FEED/1", "feed/1 ", "strasse"):
            advance(name, 1, older)


@pytest.mark.usefixtures("unblocked")
def test_a_right_table_of_mariadb_is_not_written(mariadb):
    """So the migration takes no time with many rows. It may run again."""
    tables = "SELECT name, table_id FROM information_schema.innodb_sys_tables WHERE name LIKE 'newer/zklock%'"
    with empty_database(mariadb, "newer") as newer:
        migrate(newer, BEFORE)
        before = described(newer), sorted(rows(newer, tables))
        migrate(newer)
        assert (described(newer), sorted(rows(newer, tables))) == before
        assert len(before[1]) >= len(TABLES)
        migrate(newer, BEFORE)
        migrate(newer)
        assert (described(newer), sorted(rows(newer, tables))) == before


@pytest.fixture
def unblocked(django_db_blocker):
    with django_db_blocker.unblock():
        yield
