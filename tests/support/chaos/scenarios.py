"""The faults that the locks are tested with, what must hold under each, and which of them cannot be tested yet."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Scenario:
    """One fault, and what must hold under it. A test shows it by the marker `scenario` with its id."""

    id: str
    holds: str
    waits_for: str = ""
    """What this package does not have yet, so that the scenario does not apply."""


SCENARIOS = (
    # --- network and servers
    Scenario("F1", "a holder that is killed is replaced within its session timeout and two ticks"),
    Scenario("F2", "an idle holder that the network swallows is told before the next one is granted"),
    Scenario("F3", "a holder that the network swallows while it is busy with requests is told just as soon"),
    Scenario("F4", "an outage shorter than the lease costs neither the lock nor the work under it"),
    Scenario("F5", "a hold is lost while the outage lasts, stays lost after it, and the lock can be taken again"),
    Scenario("F6", "a create whose reply is lost leaves one contender, which is granted once"),
    Scenario("F7", "a create that shows up after the reconnect does not stand in its own maker's way"),
    Scenario("F8", "who gave up waiting leaves the queue, though the delete is lost"),
    Scenario("F9", "a release whose reply is lost is a release, and the next one is served"),
    Scenario("F10", "a release during an outage returns in time, and is carried out when that is over"),
    Scenario("F15", "a holder behind a follower that its leader gave up is told before the next one is granted"),
    Scenario("F16", "nobody is granted a lock by a follower that has lost its leader"),
    Scenario("F17", "whatever the session timeout and the moment of the fault, no two leases overlap"),
    Scenario("F18", "the lease goes by the session timeout that was granted, not by the one that was asked for"),
    Scenario("F19", "a dead host in the list costs no session: the next one is tried in time"),
    Scenario("F20", "a short election costs no lock"),
    Scenario("F21", "without a quorum holders are told and nobody is granted; one holder comes out of it"),
    Scenario("F22", "after an expiry at any step, nobody takes a contender of the old session for its own"),
    Scenario("F23", "a server that freezes is left for another one, or the hold is lost by its lease"),
    Scenario("F24", "a rolling restart costs no lock where sessions are long enough"),
    Scenario("F25", "an ensemble that comes back empty is found, and locks work again"),
    Scenario("F26", "a server out of disk space means errors in time, not calls that hang"),
    Scenario("F27", "those ahead may vanish one by one without moving a waiter's deadline"),
    Scenario("F28", "after however long an outage, the reconnect takes no longer than after a short one"),
    Scenario("F30", "writes that nobody acknowledges extend no lease"),
    Scenario("F32", "a new server asked before the credentials are known costs a retry, not an error"),
    # --- processes, signals, the scheduler
    Scenario("F11", "a task struck by its soft time limit while it waits leaves the queue, and the next one is served"),
    Scenario("F12", "a task struck by its soft time limit while it releases has released"),
    Scenario("F13", "an exception at any line of acquire and release leaves nothing behind"),
    Scenario("F14", "greenlets and tasks may be cancelled at any moment, and leave nothing behind"),
    Scenario("F34", "a holder paused past its session learns of it at its first check"),
    Scenario("F35", "a holder that kept the interpreter to itself past its lease learns of it at its first check"),
    Scenario("F36", "a greenlet that did not yield past its lease learns of it at its first check"),
    Scenario("F37", "a forked child holds nothing, works with a session of its own, and leaves its parent alone"),
    Scenario("F38", "however a child forked inside a block ends, its parent still holds"),
    Scenario("F39", "a fork at any moment leaves the child able to use locks"),
    Scenario("F40", "a task whose process is killed is replaced in time; sent again, it waits as all do"),
    Scenario("F41", "a warm shutdown lets the work end, and closes the sessions at once"),
    Scenario("F42", "a cold shutdown frees the locks, and the worker does end"),
    Scenario("F43", "the pool of a worker whose main process is killed frees its locks"),
    Scenario("F44", "revoked tasks and processes that the pool replaces give their locks back"),
    Scenario("F45", "servers that reload, fork and recycle have one session per process, and none that nobody uses"),
    Scenario("F46", "a process that ends in order frees its locks at once, any other in its session timeout"),
    Scenario("F47", "the interpreter ends in time and in silence though threads wait for locks"),
    Scenario("F48", "a lease is over after the machine was suspended for longer"),
    Scenario("F49", "the wall clock may jump while a lock is held or waited for"),
    Scenario("F51", "a waiter that is paused holds the others up for its session at most, and enters nothing after it"),
    # --- meaning, data, applications
    Scenario("F52", "the late commit of a holder that was paused is refused"),
    Scenario("F53", "no lock is released before the transaction under it is committed"),
    Scenario("F54", "of a retry and a redelivery of one task, one runs"),
    Scenario("F56", "takers of the same locks never wait for each other in a circle, in whatever order they name them"),
    Scenario("F57", "a key whose sequence numbers are used up is closed, not granted twice"),
    Scenario("F59", "a holder whose node an operator deletes is told within a second"),
    Scenario("F60", "readers and writers keep each other out, also as one becomes the other"),
    Scenario("F61", "reentrance counts, and nobody but the owner releases"),
    Scenario("F62", "tasks that share a thread are owners apart"),
    Scenario("F64", "callbacks and receivers that fail or block delay neither locks nor aborts"),
    Scenario("F65", "a hostile name is refused before anything is sent, and harms no other lock"),
    Scenario("F67", "nothing depends on the clocks of other machines"),
    Scenario("F68", "other clients in the same queue are respected, and unknown ones close it"),
    Scenario("F69", "of several schedulers one enqueues each tick"),
    Scenario("F71", "a broker that restarts while tasks wait for locks ends no worker, and each task runs once"),
    Scenario("F70", "many processes under random faults for a long time: all of this still holds"),
    Scenario("READERS", "readers share the lock, also under faults of one of them, and no writer gets it meanwhile"),
    Scenario("PERMITS", "no more have a permit than the limit says that counts, and what one loses, the next one gets"),
    Scenario("PAYMENTS", "tasks that are delivered again after kills have each effect once, and in turn"),
    Scenario("WAITING", "waiting tasks keep order and effect while processes and connections fail"),
    Scenario("AGENTS", "under agents that monitor Celery, policies, waits, names and durations are right"),
    Scenario("BROKERS", "what a task does about a busy lock, it does on RabbitMQ and on Redis"),
    Scenario("CROWD", "ten thousand waiters of one process harm no other lock, and are served under any fault"),
    Scenario("LINGER", "a process that keeps a lock for its own next owners serves them in order, and others in time"),
    Scenario("COORDINATOR", "leases that lock coordinators give exclude each other, and end in time"),
    Scenario("LEADER", "of several candidates one leads, and the next follows in time"),
    # --- what is shown and measured besides
    Scenario("FAULTPOINTS", "a fault of a contender at a named moment of the protocol harms no other"),
    Scenario("MODEL", "the protocol breaks no promise in any schedule that a simulator tries"),
    Scenario("KIT", "the faults of the harness do happen"),
    Scenario("ABORT", "work is stopped within a tenth of a second of a cut that is noticed"),
)

BY_ID = {scenario.id: scenario for scenario in SCENARIOS}

#: What kazoo's own lock does not withstand. A harness that acquits it of one of these would acquit anybody.
KNOWN_BAD = ("F3", "F7", "F8", "F11", "F15", "F27", "F57", "F65")


def by_number(scenario_id: str) -> tuple[int, str]:
    """Return what to sort ids by: F2 before F10, and those without a number last."""
    match = re.fullmatch(r"F(\d+)", scenario_id)
    return (int(match[1]) if match else 10**6, scenario_id)
