"""Judge what the processes of both versions did together: it must be what processes of one version do."""

import itertools
import re
from collections import Counter, defaultdict

from support.chaos.checker import check_history, excludes
from support.versions.states import NEW, OLD

MAYBE = frozenset({"skip", "book"})  # kinds of work that is not done if the lock is busy, or the token late
ERROR = re.compile(r"\b(ERROR|CRITICAL)\b|Traceback")
SHOWN = 5  # of one kind of problem


def judge(
    events,
    *,
    roots,
    balances,
    left,
    logs,
):
    """Return the problems; `left` are the contenders when all processes have ended."""
    history = check_history(events, left=left)
    problems = {
        "packages": packages(events, roots),
        "counters": counters(events, balances),
        "units": units(events),
        "ticks": ticks(events),
        "operators": operated(events),
        "logs": [f"{name}: {line}" for name, text in logs.items() for line in text.splitlines() if ERROR.search(line)],
    }
    lines = (f"{what}: {len(items)}: {'; '.join(items[:SHOWN])}" for what, items in problems.items() if items)
    return [*([] if history.ok else [history.short()]), *lines]


def version_of(process):
    return process.partition("-")[0]


def packages(events, roots):
    return [
        f"{event['p']} imported {event['file']}"
        for event in events
        if event["e"] == "imported" and event["file"] != f"{roots[version_of(event['p'])]}/django_zklock/__init__.py"
    ]


def counters(events, balances):
    written = Counter(event["key"] for event in events if event["e"] == "fenced")
    return [
        f"{key} is {value} after {written[key]} updates" for key, value in balances.items() if value != written[key]
    ]


def units(events):
    """Find units done twice, or not at all. A message that comes back runs again if it meets no trace of the first."""
    done = defaultdict(list)
    for event in events:
        if event["e"] == "unit":
            done[event["kind"], event["ref"]].append(event)
    sent = {(event["kind"], event["ref"]) for event in events if event["e"] == "sent"}
    twice = [name for name, of_unit in done.items() if any(not run.get("copy") for run in of_unit[1:])]
    missing = [(kind, ref) for kind, ref in sorted(sent - set(done)) if kind not in MAYBE]
    return [f"{kind} {ref} was done twice" for kind, ref in twice] + [
        f"{kind} {ref} is missing" for kind, ref in missing
    ]


def ticks(events):
    sent = sorted((event["tick"], event["token"]) for event in events if event["e"] == "tick")
    wrong = []
    for (tick, token), (later, later_token) in itertools.pairwise(sent):
        if later != tick + 1:
            wrong.append(f"{later} follows {tick}")
        if later_token < token:
            wrong.append(f"{later} is of an earlier leader than {tick}")
    return wrong


def operated(events):
    by_kind = defaultdict(list)
    for event in events:
        by_kind[event["e"]].append(event)
    left = {event["token"] for event in by_kind["left"]}
    asked = {(event["token"], event["reason"]) for event in by_kind["asked"]}
    felt = {event["token"] for event in by_kind["broken"]} | left
    keepers = {event["token"]: int(event["p"].rpartition("-")[2]) for event in by_kind["kept"]}
    deaf = [
        event["reason"]
        for event in by_kind["requested"]
        if event["token"] not in left and (event["token"], event["reason"]) not in asked
    ]
    unfelt = [f"the break of {event['token']}" for event in by_kind["break"] if event["token"] not in felt]
    wrong = [
        f"{event['lock']} is shown with process {event['pid']}"
        for event in by_kind["shown"]
        if keepers.get(event["token"], event["pid"]) != event["pid"]
    ]
    return [f"{what} was not noticed" for what in deaf + unfelt] + wrong


def meetings(events):
    met = {
        f"{what} of {first}": 0 for what in ("locks", "tasks", "tokens", "requested", "break") for first in (OLD, NEW)
    }
    for meeting in _meetings(events):
        met[meeting] += 1
    return met


def _meetings(events):
    done = {event["ref"]: version_of(event["p"]) for event in events if event["e"] == "unit"}
    felt = {event["token"]: version_of(event["p"]) for event in events if event["e"] in ("asked", "broken")}
    for holds in check_history(events).run.holds.values():
        for before, after in itertools.pairwise(holds):
            versions = (version_of(before.process), version_of(after.process))
            if excludes(before, after) and set(versions) == {OLD, NEW}:  # an operator's hold is of neither
                yield f"locks of {versions[0]}"
    for event in events:
        if event["e"] == "sent" and done.get(event["ref"], version_of(event["p"])) != version_of(event["p"]):
            yield f"{'tokens' if event['kind'] == 'book' else 'tasks'} of {version_of(event['p'])}"
        elif event["e"] in ("requested", "break") and felt.get(event["token"], event["by"]) != event["by"]:
            yield f"{event['e']} of {event['by']}"
