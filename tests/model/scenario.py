"""The settings that schedules explore: how many processes and callers, and what they request."""

from __future__ import annotations

from dataclasses import dataclass, replace

from django_zklock.core.queue.nodes import Kind
from model.callers import Script
from model.operator import LimitChange

TIMEOUT = 4.0


@dataclass(frozen=True, slots=True)
class Scenario:
    callers: tuple[Script, ...]
    processes: int = 2
    tick: float = TIMEOUT / 4
    phase: float = 0.0  # of the steps that sessions' timers are kept in
    sync_limit: float = 5.0  # seconds
    chaos: float = 6.0  # seconds that faults may strike
    timeout: float = TIMEOUT  # seconds, that sessions ask for
    longest: tuple[float, ...] = ()  # seconds, that each server grants; else all that is asked for
    limits: tuple[LimitChange, ...] = ()


SMALL = Scenario((Script(0, 0.2), Script(1, 0.25)), chaos=1.2)
"""Two processes, one contender each."""

CROWD = Scenario((Script(0, 0.2), Script(1, 0.25), Script(1, 0.27), Script(0, 0.29)), chaos=1.2)
"""Two processes, two contenders each."""

LASTING = Scenario((Script(1, 0.2, holds=6.0), Script(0, 0.25)), chaos=7.0, sync_limit=8.0)
"""A holder that holds for longer than a session lasts, and one that waits."""

WAITING = Scenario((Script(1, 0.2, holds=9.0), Script(0, 0.25)), chaos=1.2)
"""A holder that outlasts all faults, and one that waits for it."""

IDLE = Scenario((Script(1, 0.2, holds=0.1, times=2, pause=4.0), Script(0, 4.5)), chaos=7.0, phase=0.3)
"""Processes that do nothing for longer than a session lasts, and then want a lock."""

IMPATIENT = Scenario((Script(0, 0.2), Script(1, 0.25, timeout=0), Script(1, 0.6, timeout=0)), chaos=1.2)
"""A holder, and two that do not wait."""

READERS = Scenario(
    (
        Script(0, 0.2, kind=Kind.WRITE),
        Script(1, 0.25, kind=Kind.READ, holds=0.2),
        Script(1, 0.27, kind=Kind.WRITE),
        Script(0, 0.29, kind=Kind.READ),
    ),
    chaos=1.2,
)
"""Two processes; a writer, with a reader, a writer and another reader behind it."""

PERMITS = Scenario(
    (
        Script(0, 0.2, kind=Kind.PERMIT, limit=2),
        Script(1, 0.22, kind=Kind.PERMIT, limit=2),
        Script(0, 0.24, kind=Kind.PERMIT, limit=2, holds=2.0),
        Script(1, 0.26, kind=Kind.PERMIT, limit=2, holds=2.0),
        Script(0, 0.28, kind=Kind.PERMIT, limit=2, holds=2.0),
        Script(1, 0.30, kind=Kind.PERMIT, limit=2, holds=2.0),
        Script(0, 0.36, kind=Kind.PERMIT, limit=2, timeout=0.1),
    ),
    chaos=1.2,
    limits=(LimitChange(0.25, 1), LimitChange(0.31, 3)),
)
"""Two processes, seven that want one of two permits, and an operator who changes how many there are."""

LINGERING = Scenario(
    (
        Script(0, 0.2, linger=0.4, times=3),
        Script(0, 0.22, linger=0.4, times=2),
        Script(1, 0.3, linger=20.0, times=2, pause=0.5),
        Script(1, 0.32, linger=20.0),
        Script(0, 0.4),
    ),
    chaos=2.5,
)
"""Two processes that keep the lock for their own next callers, and a caller who does not."""

MOVING = Scenario(
    (Script(1, 0.2, holds=9.0), Script(0, 0.25)), tick=0.5, chaos=9.0, timeout=12.0, longest=(12.0, 2.0, 12.0)
)
"""A holder whose session may move to a server that grants less, and one that waits."""

_WANTS_L, _WANTS_K = Script(0, 0.1, "l", inside=0), Script(1, 0.1, "k", inside=2)
NESTED = {
    "circle": Scenario((Script(0, 0.2, "k"), _WANTS_L, Script(1, 0.2, "l"), _WANTS_K), chaos=1.7),
    # They would share one of their locks, if no writer waited between them until its timeout.
    "readers": Scenario(
        (
            Script(0, 0.2, "k", Kind.READ),
            replace(_WANTS_L, begins=0.15),
            Script(1, 0.2, "l"),
            replace(_WANTS_K, kind=Kind.READ),
            Script(0, 0.22, "k", Kind.WRITE, timeout=1.3),
        ),
        chaos=1.7,
    ),
    # One of them gives up before the other one looks, and holds on to its first lock.
    "stale": Scenario(
        (
            Script(0, 0.2, "k", holds=4.0),
            replace(_WANTS_L, timeout=1.4),
            Script(1, 0.2, "l"),
            replace(_WANTS_K, begins=0.9),
        ),
        chaos=2.8,
    ),
}
"""Two owners in two processes, each of which wants the lock of the other one."""

PLAIN = (SMALL, IMPATIENT, CROWD, IDLE)
OTHERS = (MOVING, PERMITS, LINGERING, *NESTED.values())

FAMILIES = (
    (Kind.LOCK,),
    (Kind.READ, Kind.READ, Kind.WRITE),
    (Kind.PERMIT, Kind.PERMIT),
    (Kind.LOCK, Kind.READ, Kind.READ, Kind.WRITE, Kind.PERMIT, Kind.PERMIT),
)


def drawn(rng):
    processes = rng.choice((2, 2, 3))
    scripts = [
        Script(
            process=index % processes if index < processes else rng.randrange(processes),
            begins=round(rng.uniform(0.0, 2.0), 2),
            key=rng.choice(("k", "k", "k", "l")),
            timeout=rng.choice((None, None, None, 0, 0.5, 2.0)),
            holds=rng.choice((0.0, 0.1, 0.5, 2.0, 5.0)),
            times=rng.randint(1, 3),
            pause=rng.choice((0.0, 0.1, 1.0)),
        )
        for index in range(rng.randint(2, 6))
    ]
    family = rng.choice(FAMILIES)
    if len(family) > 1:
        most = rng.randint(1, 3)
        scripts = [
            replace(
                script,
                kind=rng.choice(family),
                limit=most if rng.random() < 0.9 else 1,
            )
            for script in scripts
        ]
    if rng.random() < 0.5:
        linger = rng.choice((0.3, 2.0, 20.0))
        scripts = [
            replace(script, linger=linger, holds=min(script.holds, 0.5), times=script.times + 3)
            if script.kind in (Kind.LOCK, Kind.WRITE) and rng.random() < 0.8
            else script
            for script in scripts
        ]
    changes = rng.choice((0, 0, 1, 3)) if Kind.PERMIT in family else 0
    limits = tuple(LimitChange(round(rng.uniform(0.0, 5.0), 2), rng.choice((None, 1, 2, 3, 4))) for _ in range(changes))
    tick = TIMEOUT / rng.choice((4, 5, 8))
    phase = round(rng.random(), 3)
    sync_limit = rng.choice((1.0, 3.0, 8.0))
    rng.random()  # unused; without it, the seeds of the tests would give other schedules
    chaos = rng.choice((3.0, 6.0, 12.0))
    return Scenario(
        tuple(scripts), processes, limits=limits, tick=tick, phase=phase, sync_limit=sync_limit, chaos=chaos
    )


def drawn_moving(rng):
    """Return a scenario with servers that grant different timeouts, and long holds."""
    scenario = drawn(rng)
    longest = tuple(rng.choice((1.0, 2.0, 5.0, 12.0)) for _ in range(3))
    scripts = tuple(replace(script, holds=max(script.holds, 3.0)) for script in scenario.callers)
    return replace(scenario, callers=scripts, tick=0.5, timeout=12.0, longest=longest)


def drawn_nested(rng):
    processes = rng.choice((1, 2, 2, 3))
    scripts = []
    kinds = rng.choice(((Kind.LOCK,), (Kind.LOCK,), (Kind.READ, Kind.READ, Kind.WRITE)))
    linger = rng.choice((0.0, 0.0, 0.5, 5.0))
    names, times = rng.choice(("kl", "kl", "klm")), rng.choice((2, 3, 5))
    for number in range(rng.choice((2, 3, 4))):
        keys = rng.sample(names, rng.randint(2, len(names)))
        begins = round(rng.uniform(0.2, 0.5), 3)
        for depth, key in enumerate(keys):
            script = Script(
                number % processes,
                begins if not depth else rng.choice((0.0, 0.05, 0.3)),
                key,
                (kind := rng.choice(kinds)),
                linger=linger if kind is not Kind.READ else 0.0,
                timeout=rng.choice((None, None, None, None, None, 1.1, 1.5)),
                holds=rng.choice((0.1, 0.5)),
                times=times,
                inside=len(scripts) - 1 if depth else None,
            )
            scripts.append(script)
    tick, phase = TIMEOUT / rng.choice((4, 8)), round(rng.random(), 3)
    return Scenario(tuple(scripts), processes, tick=tick, phase=phase, sync_limit=3.0, chaos=rng.choice((6.0, 12.0)))


def rates(rng):
    """Return how often each kind of choice deviates: some schedules are calm but for a few faults, some are storms."""
    wire = rng.choice((0.0, 0.02, 0.05, 0.15))
    slow = rng.choice((0.0, 0.05, 0.3))
    return {
        "request": wire,
        "reply": wire,
        "commit": slow,
        "apply": slow,
        "forward": wire,
        "closing": 0.3,
        "reconnect": 0.3,
        "host": 0.3,
        "event": rng.choice((0.0, 0.05, 0.2)),
        "timer": 0.1,
        "caller": 0.1,
        "preempt": rng.choice((0.0, 0.02, 0.1)),
        "backlog": 0.5,
        "fault": rng.choice((0.0, 0.01, 0.03, 0.1)),
        "kept": 0.5,
    }
