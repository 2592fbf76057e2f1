"""Celery tasks that need several locks."""

from __future__ import annotations

from typing import Any

from django_zklock import current_hold, zk_locked
from support.celeryapp import app, do
from support.policytasks import POLICIES, work

LOCKS = ["{key}/b", "{key}/a"]

for _name, _options in POLICIES.items():
    app.task(name=f"several.{_name}")(zk_locked(LOCKS, **_options)(work))


def accounts(*numbers: str, **_more: Any) -> list[str]:
    return [f"account/{number}" for number in numbers[:2]]


@app.task(name="several.transfer")
@zk_locked(accounts, unique="until_done")
def transfer(source: str, target: str, verb: str = "tell", argument: Any = None) -> Any:
    """Work under the locks that a callable names."""
    for number in (source, target):
        current_hold(f"account/{number}").check()
    return do(verb, argument)
