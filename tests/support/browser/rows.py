"""Rows of the app of events, written into the database of a site that runs."""

import sqlite3
from contextlib import closing, contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path

ATTEMPTS = "zklock_events_attempt"
ACTIONS = "zklock_events_operatoraction"


@contextmanager
def recorded(site, *rows):
    """Have these rows for the length of a block: each with its table, its age in seconds, and other columns."""
    now = datetime.now(timezone.utc)
    with closing(sqlite3.connect(Path(site.environment["SITE_HOME"]) / "site.sqlite3", timeout=20)) as database:
        inserted = []
        for table, age, columns in rows:
            values = {**columns, "at": (now - timedelta(seconds=age)).strftime("%Y-%m-%d %H:%M:%S.%f")}
            names, marks = ", ".join(f'"{name}"' for name in values), ", ".join("?" * len(values))
            cursor = database.execute(f"INSERT INTO {table} ({names}) VALUES ({marks})", list(values.values()))
            inserted.append((table, cursor.lastrowid))
        database.commit()
        try:
            yield
        finally:
            for table, row in inserted:
                database.execute(f"DELETE FROM {table} WHERE id = ?", [row])
            database.commit()


def attempt(key, host, **more):
    common = {"template": "orders/{pk}", "kind": "lock", "pid": 812, "token": 7, "waited": 0.5, "reason": ""}
    return {"key": key, "host": host, "held": 2.0, "outcome": "released", "work": "shop.tasks.charge", **common, **more}
