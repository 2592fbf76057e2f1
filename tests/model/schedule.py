"""Run one schedule from start to end: faults, then quiet, then all callers leave."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from django_zklock.core.locks.lingering import LingeringLocks
from django_zklock.core.queue import nodes
from django_zklock.core.zk.options import SessionOptions
from model.callers import BASE, Caller
from model.ensemble import Ensemble
from model.invariants import SOON, Figures, Invariants, Violation
from model.nemesis import STRAY, Nemesis
from model.operator import Operator
from model.process import Process
from model.scenario import TIMEOUT
from model.world import START, World

OPTIONS = SessionOptions(
    hosts=(("server-0", 1), ("server-1", 1), ("server-2", 1)), base=BASE, session_timeout=TIMEOUT, connect_timeout=2.0
)
STEPS = 200_000  # more, and something goes round in circles


@dataclass(slots=True)
class Played:
    figures: Figures
    violation: Violation | None
    steps: int
    diary: list[str] = field(default_factory=list)


class _Play:
    def __init__(self, stage, scenario, chooser, diary):
        self.world = world = World(chooser, diary=diary)
        self.stage = stage
        self.scenario = scenario
        stage.play(world)
        self.ensemble = Ensemble(
            world,
            timeout=scenario.timeout,
            tick=scenario.tick,
            phase=START + scenario.phase,
            sync_limit=scenario.sync_limit,
        )
        for server, longest in zip(self.ensemble.servers, scenario.longest, strict=False):
            server.longest = longest
        options = replace(OPTIONS, session_timeout=scenario.timeout)
        self.invariants = Invariants(world, self.ensemble)
        self.invariants.begin()
        self.processes = [
            Process("ABCDEF"[number], number, self.ensemble, options) for number in range(scenario.processes)
        ]
        self.invariants.processes = self.processes
        self.callers = [
            Caller(
                f"{self.processes[script.process].name}{index}", script, self.processes[script.process], self.invariants
            )
            for index, script in enumerate(scenario.callers)
        ]
        for caller in self.callers:
            if caller.script.inside is not None:
                caller.outer = self.callers[caller.script.inside]
                caller.outer.inner.append(caller)
                caller.owner = caller.outer.owner
                world.nested = True
        self.nemesis = Nemesis(self.ensemble, self.callers, self.invariants.figures)
        self.nemesis.spare = scenario.processes - 1
        Operator(self.ensemble).plan(scenario.limits)

    def play(self):
        self._chaos()
        self._heal()
        for caller in self.callers:
            caller.resting = True
        self._run(12.0)
        self._at_rest()
        self.invariants.settled = True
        for caller in self.callers:
            caller.resting = False
        for _ in range(60):
            self._run(2.0)
            if all(caller.done for caller in self.callers):
                break
        self._run(9.0 + max(caller.script.linger for caller in self.callers))
        self._at_the_end()

    def _run(self, seconds):
        self.world.run(self.world.now + seconds)
        if self.world.steps > STEPS:
            raise Violation("comes to rest", f"{self.world.steps} steps")
        self._listen()

    def _listen(self):
        for complaint in self.stage.complaints:
            if "belongs to no lock here" not in complaint:
                raise Violation("no failure", complaint)
            # A follower that lags may still show the audit a node that somebody else has deleted.
            if STRAY not in complaint and not self.invariants.robbed(complaint.rpartition(": ")[2]):
                raise Violation("no orphan", f"only the audit has found it: {complaint}")
        self.stage.complaints.clear()

    def _chaos(self):
        """Ask the nemesis after each thing that a process does, until peace comes."""
        for process in self.processes:
            self._haunt(process)
        self._run(self.scenario.chaos)

    def _haunt(self, process):
        on_thread = process._on_thread

        def haunted(thread, call, args):
            on_thread(thread, call, args)
            if not self.world.calm and not process.paused and self.world.now > START + 0.1:
                self.nemesis.consider(process)

        process._on_thread = haunted

    def _heal(self):
        self.world.note("peace")
        self.world.calm_down()
        for process in self.processes:
            if process.paused:
                process._resume(process._pauses, 0.0)
            if process.isolated:
                process.rejoin()
        for server in self.ensemble.servers:
            server.heal()

    def _at_rest(self):
        """Everybody who wants a lock has one node, somebody holds each lock that is wanted, nothing else is there."""
        known = self._known()
        for process in self.processes:
            if process.running and not process.session.connected:
                raise Violation("heals", f"{process.name} has no connection")
        self._compare(known)
        wanted = [caller for caller in self.callers if caller.process.running and (caller.waits or caller.grant)]
        self.invariants.see_no_circle()
        for key in {caller.script.key for caller in wanted}:
            held = {c.grant.path for c in wanted if c.grant and c.grant.why_invalid() is None}
            entitled = self.invariants.entitled(f"{BASE}/{key}")
            if not entitled or entitled - held:
                waiting = [(c.name, repr(c.contender)) for c in wanted if c.script.key == key]
                raise Violation("every wait ends", f"held {sorted(held)}, could be {sorted(entitled)}: {waiting}")
        members = sum(len(process.contenders) for process in self.processes if process.running)
        places = len({path for waiting in wanted for path in waiting.places}) + len(self._idle())
        if not members == places == len(known):
            raise Violation("one node each", f"{members} members, {places} places, {len(known)} nodes")

    def _idle(self):
        """Return the locks that linger and that nobody uses; see that none does so for too long."""
        idle = []
        for process in self.processes:
            for shared in process.session.attached(LingeringLocks)._locks.values() if process.running else ():
                if not shared.queue:
                    idle.append(shared.spec.key)
                    if process.monotonic() > shared.idle_since + shared._linger + SOON:
                        raise Violation("leaves in time", f"{shared.spec.key} is idle in {process.name}")
        return idle

    def _known(self):
        return {guid for process in self.processes if process.running for guid in process.registry.guids}

    def _compare(self, known):
        differences = {}
        for path, node in self.ensemble.truth.nodes.items():
            if node.owner:
                name = path.rpartition("/")[2]
                child = nodes.parse(name)
                differences[name if child is None else child.guid] = path
        if set(differences) != known:
            orphans = sorted(differences[guid] for guid in set(differences) - known)
            raise Violation("no orphan", f"nobody knows of {orphans}; not there: {sorted(known - set(differences))}")

    def _at_the_end(self):
        left = [caller.name for caller in self.callers if not caller.done]
        if left:
            raise Violation("every wait ends", f"{left} still want it")
        self._compare(set())
        for process in self.processes:
            if process.running:
                self._tables_empty(process)

    def _tables_empty(self, process):
        registry, session = process.registry, process.session
        client = session._client
        tables = {
            "members": process.contenders,
            "guids": registry.guids,
            "departures": registry.deleting,
            "heartbeat": registry.heartbeat._nodes,
            "requests": session.requests._sent,
            "lingering": session.attached(LingeringLocks)._locks,
            "watchers": any(client._data_watchers.values()) if client is not None else None,
            "watchers of children": any(client._child_watchers.values()) if client is not None else None,
        }
        for name, table in tables.items():
            if table:
                raise Violation("no leak", f"{process.name} has {name} left: {table}")


def play(stage, scenario, chooser, *, diary=None):
    game = _Play(stage, scenario, chooser, diary)
    violation = None
    try:
        game.play()
    except Violation as broken:
        violation = broken.with_traceback(None)
    return Played(game.invariants.figures, violation, game.world.steps, diary or [])
