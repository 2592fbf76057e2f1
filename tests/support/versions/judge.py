"""Judge what the processes of both versions did together: it must be what processes of one version do."""

from __future__ import annotations

import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from support.chaos.checker import Verdict as HistoryVerdict
from support.chaos.checker import check_history
from support.chaos.history import Event
from support.chaos.holds import Hold
from support.chaos.reading import read_run
from support.chaos.sharing import excludes
from support.versions.states import NEW, OLD

MAYBE = frozenset({"skip"})
"""Kinds of work that is not done if the lock is busy."""
CROSSED = {"requested": "release requests", "break": "breaks"}
ERROR = re.compile(r"\b(ERROR|CRITICAL)\b|Traceback")
SHOWN = 5  # of one kind of problem


@dataclass(frozen=True, slots=True)
class Verdict:
    """The problems of a run, and its figures."""

    problems: list[str]
    figures: dict[str, int] = field(repr=False)

    @property
    def met(self) -> int:
        """How often at least each version had something of the other, of each kind, in each direction."""
        return min(count for label, count in self.figures.items() if " at " in label)


def judge(
    events: Sequence[Event],
    *,
    roots: Mapping[str, str],
    balances: Mapping[str, int],
    left: Mapping[str, Sequence[str]],
    logs: Mapping[str, str],
) -> Verdict:
    """
    Return the verdict.

    `roots` are the directories of the two versions, `balances` what the counters have come to, `left` the contenders in
    ZooKeeper when all processes have ended.
    """
    history = check_history(events, left=left, final=balances)
    twice, missing = units(events)
    problems = [
        *([] if history.ok else [history.short()]),
        *packages(events, roots),
        *few("done twice", twice),
        *few("not done", missing),
        *few("came between", between(events)),
        *few("ticks", ticks(events)),
        *few("operators", operated(events)),
        *few("logs", errors(logs)),
    ]
    return Verdict(problems, measure(events, history, twice, missing))


def few(what: str, items: Sequence[object]) -> Iterator[str]:
    """Yield a line for all items, with some of them."""
    if items:
        yield f"{what}: {len(items)}: {'; '.join(map(str, items[:SHOWN]))}"


def version_of(process: str) -> str:
    """Return which version a process has, by its name."""
    return process.partition("-")[0]


def packages(events: Sequence[Event], roots: Mapping[str, str]) -> Iterator[str]:
    """Each process imported the package of its version, and both versions were there."""
    seen = set()
    for event in events:
        if event["e"] == "imported":
            version = version_of(event["p"])
            seen.add(version)
            if event["file"] != f"{roots[version]}/django_zklock/__init__.py":
                yield f"{event['p']} imported {event['file']}"
    if seen != {OLD, NEW}:
        yield f"there were processes of {seen or 'no version'}"


def units(events: Sequence[Event]) -> tuple[list[str], list[str]]:
    """
    Return the units of work that were done more than once, and those that were sent and not done.

    A message that the broker brings back runs once more if it meets no trace of the first: at least once is what a
    broker promises. One that met the first was sent again, and is dropped when the first is done.
    """
    done = runs(events)
    sent = {(event["kind"], event["ref"]) for event in events if event["e"] == "sent"}
    twice = [
        f"{kind} {ref}, by {', '.join(run['p'] for run in of_unit)}"
        for (kind, ref), of_unit in done.items()
        if any(not run.get("copy") for run in of_unit[1:])
    ]
    missing = [f"{kind} {ref}" for kind, ref in sorted(sent - set(done)) if kind not in MAYBE]
    return twice, missing


def runs(events: Sequence[Event]) -> dict[tuple[str, str], list[Event]]:
    """Return the runs of each unit of work, by its kind and name, in the order of time."""
    done: dict[tuple[str, str], list[Event]] = defaultdict(list)
    for event in events:
        if event["e"] == "unit":
            done[event["kind"], event["ref"]].append(event)
    return done


def between(events: Sequence[Event]) -> list[str]:
    """Find the stays that came between the giver of a lock and its adopter."""
    return [
        later.owner
        for stays in read_run(events).holds.values()
        for stay, later in itertools.pairwise(stays)
        if stay.grant.get("handed") != later.grant.get("adopted")
    ]


def ticks(events: Sequence[Event]) -> list[str]:
    """Find ticks that were sent twice, or not at all, or by a beat that had a successor."""
    sent = sorted((event["tick"], event["token"]) for event in events if event["e"] == "tick")
    wrong = []
    for (tick, token), (later, later_token) in itertools.pairwise(sent):
        if later != tick + 1:
            wrong.append(f"{later} follows {tick}")
        if later_token < token:
            wrong.append(f"{later} is of an earlier leader than {tick}")
    return wrong


def operated(events: Sequence[Event]) -> list[str]:
    """Find actions of operators that the holder did not notice, and holders that were shown wrongly."""
    by_kind: dict[str, list[Event]] = defaultdict(list)
    for event in events:
        by_kind[event["e"]].append(event)
    left = {event["token"] for event in by_kind["left"]}
    asked = {(event["token"], event["reason"]) for event in by_kind["asked"]}
    notified = {event["token"] for event in by_kind["broken"]} | left
    keepers = {(event["token"], int(event["p"].rpartition("-")[2])) for event in by_kind["kept"]}
    seen_by_keeper = {token for token, _ in keepers}
    return [
        *(
            f"{event['reason']} was not heard"
            for event in by_kind["requested"]
            if event["token"] not in left and (event["token"], event["reason"]) not in asked
        ),
        *(
            f"the break of {event['token']} was not felt"
            for event in by_kind["break"]
            if event["token"] not in notified
        ),
        *(f"{event['token']} was broken by nobody" for event in by_kind["broken"] if not event["token"]),
        *(
            f"{event['lock']} is shown with process {event['pid']}"
            for event in by_kind["shown"]
            if event["token"] in seen_by_keeper and (event["token"], event["pid"]) not in keepers
        ),
    ]


def errors(logs: Mapping[str, str]) -> list[str]:
    """Return the lines of logs that tell of an error."""
    return [f"{name}: {line}" for name, text in logs.items() for line in text.splitlines() if ERROR.search(line)]


def measure(
    events: Sequence[Event], history: HistoryVerdict, twice: Sequence[str], missing: Sequence[str]
) -> dict[str, int]:
    """Return the figures of a run."""
    holds = read_run(events).holds
    done = Counter(kind for kind, _ in runs(events))
    figures: dict[str, int] = {f"done: {kind}": count for kind, count in sorted(done.items())}
    for version in (OLD, NEW):
        figures[f"stays of the {version} version"] = sum(
            version_of(hold.process) == version for stays in holds.values() for hold in stays
        )
    figures["hand-overs between versions"] = sum(
        sum(change(stay, later) for stay, later in itertools.pairwise(stays)) for stays in holds.values()
    )
    crossed = Counter(crossings(events))
    for what in ("tasks", "signed tokens", *CROSSED.values()):
        for first, then in ((OLD, NEW), (NEW, OLD)):
            figures[f"{what} of {first} at {then}"] = crossed[what, first, then]
    kinds = Counter(event["e"] for event in events)
    figures |= {
        "ticks": kinds["tick"],
        "leaders of beat": len({event["token"] for event in events if event["e"] == "tick"}),
        "fenced increments": sum(event["e"] == "fenced" and event["ok"] for event in events),
        "copies of messages": kinds["copied"],
        "copies that ran after the first": kinds["unit"] - done.total() - len(twice),
        "processes replaced": kinds["replaced"],
        "actions of operators": kinds["operated"],
        "overlaps": sum(violation.rule == "exclusion" for violation in history.violations),
        "done twice": len(twice),
        "missing": len(missing),
    }
    return figures


def crossings(events: Sequence[Event]) -> Iterator[tuple[str, str, str]]:
    """Yield what one version did with something of the other: what, the first version, the second."""
    done = {event["ref"]: version_of(event["p"]) for event in events if event["e"] == "unit"}
    felt = {event["token"]: version_of(event["p"]) for event in events if event["e"] in ("asked", "broken")}
    for event in events:
        process = version_of(event["p"])
        if event["e"] == "queued" and event["about"] in done:
            yield "tasks", process, done[event["about"]]
        elif event["e"] == "accepted" and event["about"] in done:
            yield "signed tokens", done[event["about"]], process
        elif event["e"] in ("requested", "break") and event["token"] in felt:
            yield CROSSED[event["e"]], event["by"], felt[event["token"]]


def change(stay: Hold, later: Hold) -> bool:
    """Tell whether a lock went from one version to the other."""
    return excludes(stay, later) and version_of(stay.process) != version_of(later.process)
