"""Databases with one table. Tests see when a transaction ends and what others can read."""

import contextlib
import functools
import sqlite3

from django.db import connections


class Ledger:
    def __init__(self, alias, path):
        self.path = path
        self._configure(alias, {"ENGINE": "django.db.backends.sqlite3", "NAME": str(path)})
        self._run("PRAGMA journal_mode=WAL", "CREATE TABLE note (text TEXT)")

    def _configure(self, alias, settings):
        self.alias = alias
        configured = connections.configure_settings(
            {"default": {"ENGINE": "django.db.backends.dummy"}, alias: {**settings, "ATOMIC_REQUESTS": False}}
        )
        self.settings = configured[alias]
        connections.settings[alias] = self.settings

    def _run(self, *statements):
        rows = []
        with contextlib.closing(sqlite3.connect(self.path, timeout=0)) as raw:
            for statement in statements:
                rows = raw.execute(statement).fetchall()
        return rows

    @classmethod
    @contextlib.contextmanager
    def opened(cls, alias, folder):
        with cls(alias, folder / f"{alias}.sqlite3").closed() as ledger:
            yield ledger

    @contextlib.contextmanager
    def closed(self):
        yield self
        self.assert_idle()
        self.close()

    @property
    def connection(self):
        return connections[self.alias]

    def write(self, text):
        with self.connection.cursor() as cursor:
            cursor.execute("INSERT INTO note VALUES (%s)", [text])

    def seen(self):
        return [text for (text,) in self._run("SELECT text FROM note")]  # in the order of their insertion

    @contextlib.contextmanager
    def ends(self, look):
        endings = []
        connection = self.connection

        def end(name, original):
            endings.append((name, look()))
            original()

        for name in ("_commit", "_rollback"):
            connection.__dict__[name] = functools.partial(end, name[1:], getattr(connection, name))
        yield endings
        for name in ("_commit", "_rollback"):
            del connection.__dict__[name]

    def assert_idle(self):
        connection = self.connection
        assert not connection.in_atomic_block
        assert not connection.atomic_blocks
        assert not connection.savepoint_ids
        assert not {"commit", "rollback", "close", "set_autocommit"} & set(connection.__dict__)
        if connection.connection is not None:
            assert connection.get_autocommit()
        self._lock_all()

    def _lock_all(self):
        connection = self.connection.connection
        assert connection is None or not connection.in_transaction
        self._run("BEGIN EXCLUSIVE", "ROLLBACK")

    def close(self):
        connection = self.connection
        connection.in_atomic_block = False
        connection.close()
        del connections[self.alias]
        del connections.settings[self.alias]


class MariaDBLedger(Ledger):
    def __init__(self, alias, settings):
        self._configure(alias, settings)
        self._run("CREATE TABLE IF NOT EXISTS note (text TEXT)")

    def _run(self, *statements):
        other = connections.create_connection(self.alias)
        try:
            with other.cursor() as cursor:
                # A server sees only after a moment that a client has closed its connection.
                for statement in ("SET lock_wait_timeout = 10", *statements):
                    cursor.execute(statement)
                return list(cursor.fetchall())
        finally:
            other.close()

    def _lock_all(self):
        self._run("LOCK TABLES note WRITE")

    def close(self):
        self._run("DELETE FROM note")
        super().close()
