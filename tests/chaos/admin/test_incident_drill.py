"""Each incident of `scripts/incidents.py`, with real processes: all places name its cause, and the remedy works."""

import runpy

import pytest
from support.zoo import TESTS

pytestmark = pytest.mark.timeout(600)

INCIDENTS = runpy.run_path(str(TESTS.parent / "scripts" / "incidents.py"))


@pytest.mark.parametrize("play", INCIDENTS["PLAYS"], ids=lambda play: play.__name__)
def test_an_incident_is_named_with_its_cause_and_remedy(three, tmp_path, play):
    _named, cause, remedy, commands, _away = INCIDENTS["played"](three, tmp_path, play)
    assert (cause, remedy, "NO" in commands) == ("yes", "yes", False), commands
