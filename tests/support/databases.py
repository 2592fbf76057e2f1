"""More databases than the default one, with the tables of the fenced models: SQLite in a file, PostgreSQL, MariaDB."""

import contextlib
import itertools

import pytest
from django.apps import apps
from django.db import connections

SQLITE = {"timeout": 60, "init_command": "PRAGMA journal_mode=WAL"}
_numbers = itertools.count(1)


def sqlite(path):
    return {"ENGINE": "django.db.backends.sqlite3", "NAME": str(path), "OPTIONS": dict(SQLITE)}


def fenced_models():
    return [*apps.get_app_config("ledgers").get_models(), *apps.get_app_config("zklock_fences").get_models()]


@contextlib.contextmanager
def configured(alias, settings):
    connections.settings[alias] = connections.configure_settings({"default": {}, alias: settings})[alias]
    try:
        yield alias
    finally:
        connection = connections[alias]
        connection.close()
        if connection.vendor == "postgresql":
            connection.close_pool()
        del connections.settings[alias], connections[alias]


@contextlib.contextmanager
def database(settings, *more):
    """Have a database with the tables of the fenced models, and more; return its alias, which no thread knows yet."""
    with configured(f"ledger-{next(_numbers)}", settings) as alias, tables(alias, *more):
        yield alias


@contextlib.contextmanager
def tables(alias, *more):
    """Make the tables. In the end drop those of `more`, and empty the others: a server keeps them for the next test."""
    connection = connections[alias]
    there = set(connection.introspection.table_names())
    with connection.schema_editor() as editor:
        for model in (*fenced_models(), *more):
            if model._meta.db_table not in there:
                editor.create_model(model)
    try:
        yield
    finally:
        connection.close()  # what a test left open would lock them
        with connection.schema_editor() as editor:
            for model in more:
                editor.delete_model(model)
        with connection.cursor() as cursor:
            for model in reversed(fenced_models()):
                cursor.execute(f"DELETE FROM {model._meta.db_table}")


on_servers = pytest.mark.parametrize(
    "database_settings", ["postgres", "mariadb-read committed", "mariadb-repeatable read"], indirect=True
)
"""Not on SQLite, which has one writer, and refuses a transaction to write what it has read from an older state."""
on_read_committed = pytest.mark.parametrize("database_settings", ["postgres", "mariadb-read committed"], indirect=True)
"""Databases on which a read locks neither gaps nor rows that it joins."""
