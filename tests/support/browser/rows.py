"""Rows of the app of events, written into the database of a site that runs."""

import sqlite3
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

TABLE = "zklock_events_event"


@contextmanager
def recorded(site, *rows):
    """Have these rows for the length of a block: each with its age in seconds, and its other columns."""
    now = datetime.now(UTC)
    with closing(sqlite3.connect(Path(site.environment["SITE_HOME"]) / "site.sqlite3", timeout=20)) as database:
        inserted = []
        for age, columns in rows:
            at = (now - timedelta(seconds=age)).strftime("%Y-%m-%d %H:%M:%S.%f")
            values = {**columns, "at": at, "recorded": at}
            names, marks = ", ".join(f'"{name}"' for name in values), ", ".join("?" * len(values))
            cursor = database.execute(f"INSERT INTO {TABLE} ({names}) VALUES ({marks})", list(values.values()))
            inserted.append(cursor.lastrowid)
        database.commit()
        try:
            yield
        finally:
            for row in inserted:
                database.execute(f"DELETE FROM {TABLE} WHERE id = ?", [row])
            database.commit()


def event(key, host, **more):
    common = {"kind": "lock", "pid": 812, "token": 7, "session": 1, "waited": 0.5, "held": 2.0, "count": 1}
    texts = {"outcome": "released", "work": "shop.tasks.charge", "by": "", "reason": ""}
    return {"key": key, "host": host, **common, **texts, **more}
