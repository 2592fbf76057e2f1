"""The verdict of the first page and of the doctor on many locks, and on a quiet day."""

import re

import pytest
from support.browser.actors import staged
from support.drill import CALM, LINES, plain
from support.quietday import look, quiet_day

from django_zklock.management.exit_codes import ExitCode

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def stage(drill):
    with staged(drill.zoo) as stage:
        yield stage


def test_a_deadlock_at_the_end_of_five_thousand_locks_is_never_green(drill, stage):
    """It is found, or the verdict says that not all was looked at. The others have more waiters, and earlier keys."""
    drill.site.environment["SITE_ZKLOCK"] = '{"DEADLOCK_TIMEOUT": null}'
    first, second = drill.program("web-1"), drill.program("batch-1")
    for program, keys in ((first, ("zzz/a", "zzz/b")), (second, ("zzz/b", "zzz/a"))):
        program.tell("nest", *keys)
        program.hear(f"held {keys[0]}")
    for program in (first, second):
        program.tell("want")
    stage.crowd(1_100, 2, "busy")
    stage.crowd(3_898, 0, "idle")
    page = plain(drill.open())
    lines, status = drill.status()
    assert "Deadlock: zzz/a, zzz/b" in page or re.search("No known cause in [0-9,]+ of 5,000 locks", page), page
    assert CALM not in page
    printed = "\n".join(lines[:LINES])
    is_named = "Deadlock: zzz/a, zzz/b" in printed
    assert is_named or "of 5000 locks" in printed, printed
    assert status == (ExitCode.INCIDENT if is_named else ExitCode.PARTIAL)


def test_a_quiet_day_is_green_in_each_web_process(drill, tmp_path):
    """A holder is hung after a minute, so this takes two."""
    with quiet_day(drill, tmp_path) as sites:
        seen = look(drill, sites, minutes=2)
    assert {text for text in seen if CALM not in text} == set(), seen
