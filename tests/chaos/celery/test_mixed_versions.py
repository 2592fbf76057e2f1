"""Processes of two versions share locks, tasks and a schedule, while one version replaces the other, and back."""

import contextlib
import random
import time
import uuid

import psycopg
import pytest
from support.versions.fleet import ACTORS, BEATS, SLOTS, WORKERS, Fleet
from support.versions.judge import judge, meetings
from support.versions.states import CHECKOUT, NEW, State, old_state
from support.versions.traffic import Traffic
from support.zoo import eventually

from django_zklock.core.queue.operator_hold import RESERVATIONS

SECONDS = 75.0  # for all replacements, at least
REST = 90.0  # seconds until all that was sent is done


@pytest.fixture
def ensemble(three):
    return three


@pytest.fixture
def old(tmp_path):
    """The state that is deployed, as if today's checkout were to replace it."""
    state = old_state(tmp_path / "old")
    if state is None:
        pytest.skip("git has no commit of an older version here: this needs a clone with its whole history, and tags")
    return state


@pytest.fixture
def database(postgres):
    name = f"mixed_{uuid.uuid4().hex[:8]}"
    settings = postgres.settings
    with psycopg.connect(
        host=settings["HOST"], port=settings["PORT"], user=settings["USER"], dbname=settings["NAME"], autocommit=True
    ) as connection:
        connection.execute(f"CREATE DATABASE {name}")
        yield {**settings, "NAME": name}
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


def upgrade_and_roll_back(fleet, old, new, seconds):
    began = time.monotonic()
    steps = [(slot, state) for state in (new, old) for slot in SLOTS]
    for number, (slot, state) in enumerate(steps):
        if slot == SLOTS[0]:
            fleet.migrate(state)
        fleet.replace(slot, state)
        time.sleep(max(0.0, began + (number + 1) * seconds / len(steps) - time.monotonic()))


def end_work(fleet, redis):
    fleet.stop(*BEATS, *ACTORS)
    with contextlib.suppress(AssertionError):  # the judge says what is missing
        eventually(lambda: not redis.tags(), REST)
    fleet.stop(*WORKERS)


@pytest.mark.timeout(0)  # it ends by the clock
def test_two_versions_keep_the_promises_together(
    old,  # first: without one, no server is started
    request,
    arena,
    redis,
    database,
    tmp_path,
):
    new = State(NEW, CHECKOUT)
    seed = request.config.getoption("--soak-seed")
    seconds = max(SECONDS, request.config.getoption("--soak-seconds"))
    redis.clear()
    with Fleet(arena, tmp_path, redis.conf, database) as fleet:
        for state in (old, new):
            fleet.begin_operator(state)
        fleet.prepare(old)
        for slot in SLOTS:
            fleet.start(slot, old)
        with Traffic(fleet, redis, random.Random(seed)) as traffic:
            upgrade_and_roll_back(fleet, old, new, seconds)
        end_work(fleet, redis)
        # Neither version ends the reservations of the other, which are over after an hour.
        events = fleet.events()
        problems = judge(
            events,
            roots={state.name: str(state.root) for state in (old, new)},
            balances=fleet.balances(new),
            left={"": [path for path in arena.contenders() if f"/{RESERVATIONS}/" not in path]},
            logs=fleet.logs(),
        )
        statuses = {name: status for name, status in fleet.statuses.items() if status}
    wrong = [*problems, *traffic.failures, *(f"{name} ended with {status}" for name, status in statuses.items())]
    assert not wrong, "\n".join(wrong)
    met = meetings(events)
    print(met)
    assert all(met.values()), "the versions hardly met"
