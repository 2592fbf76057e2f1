"""The reference of the signals names each of them with what it is sent with, and its example counts."""

from __future__ import annotations

import re

from django.dispatch import Signal
from support.docs import run, text_of

from django_zklock import signals, zk_lock
from django_zklock.testing import LockTester

PAGE = text_of("reference/signals.md")


def test_every_signal_is_on_the_page() -> None:
    """With the arguments that the module says it has."""
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*?) \|", PAGE, flags=re.MULTILINE))
    assert set(rows) == {name for name, value in vars(signals).items() if isinstance(value, Signal)}
    for name, arguments in rows.items():
        assert f"`{name}({arguments.replace('`', '')})`" in str(signals.__doc__)


def test_the_example_counts_grants_by_kind(zklock: LockTester) -> None:
    """As a reader would copy it."""
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    names = run(code)
    with zk_lock("a", kind="read"), zk_lock("b", limit=2):
        pass
    zklock.eventually(lambda: names["granted"] == {"read": 1, "semaphore": 1})
