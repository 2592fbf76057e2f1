"""
How locks scale on three real servers: keys that are idle or held, sessions with heartbeats, long queues, inspection.

The load comes from bare sockets with pipelined requests (`raw_sessions.py`), the same requests that our client sends:
a lock for each key through the public API would only measure Python. What an application sees is measured at the same
time with the public API, in a process of its own (`scale_client.py`). All writes are synced to disk. Servers and
clients share the machine, so rates are lower, and times longer, than with a machine for each server.

The figures are printed, and stored as JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from lock_requests import create_contender, heartbeat, make_directory, pair, use_once
from raw_sessions import NO_NODE, RawSession, in_turn, open_sessions
from server_figures import (
    Figures,
    client,
    cpu_seconds,
    heap_bytes,
    percentiles,
    repeated,
    replace,
    snapshot_bytes,
    until,
    znodes,
)
from support.ensemble import Ensemble, Server
from support.jute import Request, children, container

from django_zklock.core.zk.heartbeat import NODES_PER_BEAT
from django_zklock.core.zk.lease import BEAT_SHARE

ROOT = "/scale/zklock"  # of the locks: the chroot of the normal client, and the default of the setting ROOT
TIMEOUT = 20.0  # seconds, of the sessions: the default of the setting SESSION_TIMEOUT
PING_SHARE = 1 / 3  # of it, between two pings of a session that sends nothing else
PER_PROCESS = 32  # contenders of one process that wait in a queue; more wait inside it
WRITERS = 64  # sessions that write as fast as they can
KEYS_PER_SESSION = 1000
JOINS = 10  # of one more, when a queue is there
REMOVAL_CHECK = 10  # seconds between the leader's looks for them


def ports_of(ensemble: Ensemble) -> list[int]:
    """Return the ports of all servers."""
    return [server.port for server in ensemble.servers]


# --- the parts --------------------------------------------------------------------------------------------------------


async def measure_writes(ensemble: Ensemble, options: argparse.Namespace) -> Figures:
    """Measure the most writes per second of each kind, and the latency of heartbeats at a part of that rate."""
    sessions = await open_sessions(ports_of(ensemble), WRITERS, TIMEOUT)
    directory = f"{ROOT}/writes"
    await make_directory(sessions[0], directory)
    await asyncio.gather(*(session.hold(f"{directory}/{number}") for number, session in enumerate(sessions)))

    kinds: dict[str, Callable[[RawSession], list[Request]]] = {
        "heartbeats of one znode": lambda session: [heartbeat(session)],
        f"heartbeats of {NODES_PER_BEAT} znodes": lambda session: [heartbeat(session, NODES_PER_BEAT)],
        "creates and deletes": pair,
    }
    figures: Figures = {}
    leader, follower = ensemble.leader, ensemble.followers[0]
    for name, requests in kinds.items():
        await saturated(sessions, requests, options.seconds / 3)  # the servers' Java compiles what runs often
        before = cpu_seconds(leader), cpu_seconds(follower)
        count, took = await saturated(sessions, requests, options.seconds)
        figures[name] = {
            "per second": count / took,
            "leader's CPU us each": 1e6 * (cpu_seconds(leader) - before[0]) / count,
            "follower's CPU us each": 1e6 * (cpu_seconds(follower) - before[1]) / count,
        }
    most = figures["heartbeats of one znode"]["per second"]
    for share in (0.02, 0.1, 0.25, 0.5):  # of more, one by one, the client may not be able to send
        took_each: list[float] = []
        beat = partial(timed_heartbeat, took_each)
        async with repeated(in_turn(sessions, len(sessions) / (share * most), beat)):
            await asyncio.sleep(options.seconds)
        figures[f"heartbeats at {share:.0%} of the most"] = {
            "per second": len(took_each) / options.seconds,
            **percentiles(took_each),
        }
    await asyncio.gather(*(session.close() for session in sessions))
    return figures


async def saturated(
    sessions: Sequence[RawSession], requests: Callable[[RawSession], list[Request]], seconds: float
) -> tuple[int, float]:
    """Have all sessions write as fast as they can; return how many writes there were, and the seconds."""
    began = time.monotonic()

    async def write(session: RawSession) -> int:
        batch = requests(session) * 8
        count = 0
        while time.monotonic() < began + seconds:
            errors = await session.pipeline(batch, window=len(batch))
            assert set(errors) == {0}, errors
            count += len(batch)
        return count

    counts = await asyncio.gather(*map(write, sessions))
    return sum(counts), time.monotonic() - began


def timed_heartbeat(took: list[float], session: RawSession) -> None:
    """Send a heartbeat, and append how long its reply took."""
    sent = time.monotonic()
    session.send(heartbeat(session), lambda error, body: took.append(time.monotonic() - sent))


def of_keys(keys: int, took: float, heap: float, server: Server, joins_in: float) -> Figures:
    """Return what so many keys cost a server: bytes for each, and the seconds in which one without data gets all."""
    return {
        "keys": keys,
        "seconds": took,
        "heap bytes per key": heap / keys,
        "snapshot bytes per key": snapshot_bytes(server) / keys,
        "a server without data joins in seconds": joins_in,
    }


async def measure_held(ensemble: Ensemble, options: argparse.Namespace) -> Figures:
    """Hold many keys at once; measure memory, and inspection."""
    # Not on the server that is replaced: it would drop their connections.
    servers: list[Server] = [*ensemble.followers, ensemble.leader]
    replaced, *others = servers
    before = heap_bytes(others[0])
    ports = [server.port for server in others]
    sessions = await open_sessions(ports, max(1, options.held // KEYS_PER_SESSION), TIMEOUT)
    directory = f"{ROOT}/held"
    await make_directory(sessions[0], directory)

    async def acquire(number: int, session: RawSession) -> None:
        keys = [f"{directory}/{key}" for key in range(number, options.held, len(sessions))]
        errors = await session.pipeline(request for key in keys for request in (container(key), create_contender(key)))
        assert set(errors) == {0}, errors

    async with repeated(in_turn(sessions, TIMEOUT * PING_SHARE, RawSession.ping)):
        began = time.monotonic()
        await asyncio.gather(*(acquire(number, session) for number, session in enumerate(sessions)))
        took = time.monotonic() - began
        heap = await asyncio.to_thread(heap_bytes, others[0]) - before
        replaced_in = await asyncio.to_thread(replace, replaced)
        async with client(ensemble, "inspect") as inspected:
            inspection = await inspected()
        began = time.monotonic()
        await asyncio.gather(*(session.close() for session in sessions))
    return {
        **of_keys(options.held, took, heap, replaced, replaced_in),
        "inspection": inspection,
        "end of all sessions, seconds": time.monotonic() - began,
    }


async def measure_sessions(ensemble: Ensemble, options: argparse.Namespace) -> Figures:
    """Keep many sessions alive, of which a share holds a lock; measure what that costs servers and a normal client."""
    before = sum(heap_bytes(server) for server in ensemble.servers)
    began = time.monotonic()
    sessions = await open_sessions(ports_of(ensemble), options.sessions, TIMEOUT)
    figures: Figures = {"sessions": len(sessions), "seconds to connect": time.monotonic() - began}
    async with repeated(in_turn(sessions, TIMEOUT * PING_SHARE, RawSession.ping)):
        heap = await asyncio.to_thread(lambda: sum(heap_bytes(server) for server in ensemble.servers))
        # The session is known to all servers, the connection to one.
        figures["heap bytes per session, of all servers"] = (heap - before) / len(sessions)
        directory = f"{ROOT}/sessions"
        await make_directory(sessions[0], directory)
    for share in options.shares:
        holders, idle = sessions[: round(share * len(sessions))], sessions[round(share * len(sessions)) :]
        figures[f"{share:.0%} hold"] = await with_holders(ensemble, holders, idle, directory, options.seconds)
    await asyncio.gather(*(session.close() for session in sessions))
    return figures


async def with_holders(
    ensemble: Ensemble, holders: Sequence[RawSession], idle: Sequence[RawSession], directory: str, seconds: float
) -> Figures:
    """Let some sessions send heartbeats, and the others pings."""
    new = [session for session in holders if not session.holds]
    for start in range(0, len(new), 500):
        batch = new[start : start + 500]
        await asyncio.gather(*(session.hold(f"{directory}/{session.session_id:x}") for session in batch))
    took: list[float] = []
    async with repeated(
        in_turn(holders, TIMEOUT * BEAT_SHARE, partial(timed_heartbeat, took)),
        in_turn(idle, TIMEOUT * PING_SHARE, RawSession.ping),
    ):
        async with client(ensemble, "locks", str(seconds)) as waited:
            took.clear()
            servers = [ensemble.leader, *ensemble.followers]
            before, began = [cpu_seconds(server) for server in servers], time.monotonic()
            of_locks = await waited()
        passed = time.monotonic() - began
        used = [(cpu_seconds(server) - earlier) / passed for server, earlier in zip(servers, before, strict=True)]
        figures = {
            "heartbeats per second": len(took) / passed,
            "pings per second": len(idle) / (TIMEOUT * PING_SHARE),
            "leader's CPU": used[0],
            "a follower's CPU": statistics.mean(used[1:]),
            "acquire and release": {**percentiles(of_locks["took"]), "failed": of_locks["failed"]},
        }
        if took:
            figures["heartbeat"] = percentiles(took)
        return figures


async def measure_queues(ensemble: Ensemble, options: argparse.Namespace) -> Figures:
    """Let many processes join one queue, for each size."""
    return {f"{size} waiters": await join_queue(ensemble, size) for size in options.queues}


async def join_queue(ensemble: Ensemble, size: int) -> Figures:
    """Let processes join a queue at the same time. Then let one more join, again and again."""
    sessions = await open_sessions(ports_of(ensemble), -(-size // PER_PROCESS), TIMEOUT)
    await make_directory(sessions[0], f"{ROOT}/queue")
    key = f"queue/{size}"
    await sessions[0].ask(container(f"{ROOT}/{key}"))
    listed: list[int] = []  # bytes of each listing
    leader, began = ensemble.leader, time.monotonic()
    used = cpu_seconds(leader)
    async with repeated(in_turn(sessions, TIMEOUT * PING_SHARE, RawSession.ping)):
        shares = [min(PER_PROCESS, size - start) for start in range(0, size, PER_PROCESS)]
        arrivals = [arrive(*pair, f"{ROOT}/{key}", listed) for pair in zip(sessions, shares, strict=True)]
        arrived = await asyncio.gather(*arrivals)
        figures = {
            "processes": len(sessions),
            "all have arrived after seconds": time.monotonic() - began,
            "a process took": percentiles(arrived),
            "MiB listed": sum(listed) / 2**20,
            "KiB of the last listing": listed[-1] / 1024,
            "leader's CPU seconds": cpu_seconds(leader) - used,
        }
        figures["one more, bare requests"] = percentiles(await join_again(ensemble, f"{ROOT}/{key}"))
        async with client(ensemble, "joins", key, str(JOINS)) as joined:
            figures["one more, normal client"] = percentiles((await joined())["took"])
        async with client(ensemble, "inspect") as inspected:
            figures["inspection"] = await inspected()
        began = time.monotonic()
        await asyncio.gather(*(session.close() for session in sessions))
    return {**figures, "end of all sessions, seconds": time.monotonic() - began}


async def arrive(session: RawSession, waiters: int, directory: str, listed: list[int]) -> float:
    """Join a queue as a process with some waiters does: a listing with the first of them, and one for the others."""
    began = time.monotonic()
    others = (create_contender(directory) for _ in range(waiters - 1))
    first, _ = await asyncio.gather(create_and_list(session, directory), session.pipeline(others))
    listed.append(first)
    if waiters > 1:
        _, listing = await session.ask(children(directory))
        listed.append(len(listing))
    return time.monotonic() - began


async def join_again(ensemble: Ensemble, directory: str) -> list[float]:
    """Join a queue by bare requests, again and again; return how long each time took."""
    took = []
    session = await RawSession.open(ensemble.followers[0].port, TIMEOUT)
    for _ in range(JOINS):
        began = time.monotonic()
        await create_and_list(session, directory)
        took.append(time.monotonic() - began)
    await session.close()
    return took


async def create_and_list(session: RawSession, directory: str) -> int:
    """Create a contender and list the queue, in one round trip; return how long the listing is in bytes."""
    created = session.ask(create_contender(directory))
    error, listing = await session.ask(children(directory))
    assert (await created)[0] == error == 0
    return len(listing)


async def measure_idle(ensemble: Ensemble, options: argparse.Namespace) -> Figures:
    """Use many keys once; measure the memory that their empty directories take until the leader removes them."""
    server = ensemble.followers[0]
    before = heap_bytes(server)
    sessions = await open_sessions(ports_of(ensemble), WRITERS, TIMEOUT)
    directory = f"{ROOT}/idle"
    await make_directory(sessions[0], directory)

    async def use(number: int, session: RawSession) -> None:
        keys = range(number, options.idle, len(sessions))
        errors = await session.pipeline(request for key in keys for request in use_once(f"{directory}/{key}"))
        assert errors == {NO_NODE: 2 * len(keys), 0: 4 * len(keys)}, errors

    began = time.monotonic()
    async with repeated(in_turn(sessions, TIMEOUT * PING_SHARE, RawSession.ping)):
        await asyncio.gather(*(use(number, session) for number, session in enumerate(sessions)))
    took = time.monotonic() - began
    await asyncio.gather(*(session.close() for session in sessions))
    heap = heap_bytes(server) - before
    replaced_in = replace(server)
    return of_keys(options.idle, took, heap, server, replaced_in)


async def measure_removal(ensemble: Ensemble, options: argparse.Namespace) -> Figures:
    """Measure how fast the leader removes empty directories, and what a normal client notices."""
    leader = ensemble.leader
    others = 20  # znodes at most, of ZooKeeper itself, of the client, and above the keys
    async with client(ensemble, "locks", str(REMOVAL_CHECK + options.seconds)) as waited:
        await until(lambda: znodes(leader) < options.idle * 0.99 + others, 120.0)
        took = await until(lambda: znodes(leader) < options.idle * 0.01 + others, 3600.0)
        await until(lambda: znodes(leader) < others, 120.0)
        of_locks = await waited()
    return {
        "removed per second": 0.98 * options.idle / took,
        "znodes left": znodes(leader),
        "minutes at the server's default pace": options.idle / 10_000,
        "acquire and release meanwhile": {**percentiles(of_locks["took"]), "failed": of_locks["failed"]},
    }


# --- the whole --------------------------------------------------------------------------------------------------------

Part = Callable[[Ensemble, argparse.Namespace], Coroutine[None, None, Figures]]
PARTS: dict[str, Part] = {
    "writes": measure_writes,
    "sessions": measure_sessions,  # before those that leave directories: while they are removed, memory says nothing
    "queues": measure_queues,
    "held": measure_held,
}


def servers(options: argparse.Namespace, removal_check: float, directory: str | None = None) -> Ensemble:
    """Return three servers with the settings of a production server, but for the pace of removals."""
    java = [f"-Xmx{options.heap}", "-XX:TieredStopAtLevel=4", "-XX:-UseSerialGC", "-XX:+UseG1GC"]
    java.append(f"-Dznode.container.maxPerMinute={options.removals}")
    return Ensemble(
        nodes=3,
        tick=2.0,
        fsync=True,
        container_check=removal_check,
        max_session_timeout=60,
        directory=directory,
        java_options=java,
    )


def measure(options: argparse.Namespace) -> Figures:
    """Measure all parts, and print each."""
    results: Figures = {}

    def run(name: str, part: Part, ensemble: Ensemble) -> None:
        began = time.monotonic()
        results[name] = asyncio.run(part(ensemble, options))
        results[name]["measured in seconds"] = time.monotonic() - began
        sys.stdout.write(report(name, results[name]) + "\n")
        sys.stdout.flush()

    wanted = options.part or [*PARTS, "idle"]
    if others := [name for name in wanted if name in PARTS]:
        with servers(options, removal_check=60.0) as ensemble:
            for name in others:
                run(name, PARTS[name], ensemble)
    if "idle" in wanted:
        with tempfile.TemporaryDirectory(prefix="zklock-scale-") as directory:
            with servers(options, removal_check=86_400.0, directory=directory) as ensemble:
                run("idle", measure_idle, ensemble)
            with servers(options, removal_check=REMOVAL_CHECK, directory=directory) as ensemble:
                run("removal", measure_removal, ensemble)
    return results


def report(name: str, figures: Figures, indent: str = "") -> str:
    """Return figures as text, with a line for each; those that belong together are in one line."""
    lines = [f"{indent}{name}"]
    for figure, value in figures.items():
        if not isinstance(value, dict):
            lines.append(f"{indent}  {figure:44}{shown(value)}")
        elif any(isinstance(item, dict) for item in value.values()):
            lines.append(report(figure, value, indent + "  "))
        else:
            lines.append(f"{indent}  {figure:44}" + ", ".join(f"{key} {shown(item)}" for key, item in value.items()))
    return "\n".join(lines)


def shown(value: object) -> str:
    """Return a figure as text."""
    if isinstance(value, float):
        return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--idle", type=int, default=1_000_000, help="keys that are used once")
    parser.add_argument("--held", type=int, default=200_000, help="keys that are held at once")
    parser.add_argument("--sessions", type=int, default=10_000)
    parser.add_argument("--shares", type=float, nargs="+", default=[0.0, 0.1, 0.5, 1.0], help="of sessions that hold")
    parser.add_argument("--queues", type=int, nargs="+", default=[100, 1000, 5000, 20_000], help="waiters for one key")
    parser.add_argument("--seconds", type=float, default=15.0, help="of each measurement of a rate or a latency")
    parser.add_argument(
        "--removals", type=int, default=600_000, help="of idle keys per minute; more than 60000: as fast as it goes"
    )
    parser.add_argument("--quick", action="store_true", help="a hundredth of all sizes, and a fifth of the seconds")
    parser.add_argument("--heap", default="3g", help="of each server (default: 3g)")
    parser.add_argument("--part", choices=[*PARTS, "idle"], action="append", help="measure this part only")
    parser.add_argument("--json", type=Path, default=Path("bench-scale.json"), metavar="FILE")
    options = parser.parse_args(arguments)
    if options.quick:
        for size in ("idle", "held", "sessions"):
            setattr(options, size, max(1, getattr(options, size) // 100))
        options.queues = [max(1, size // 100) for size in options.queues]
        options.seconds /= 5
    began, load = time.monotonic(), os.getloadavg()[0]
    results = measure(options)
    about = {"python": platform.python_version(), "cpus": os.cpu_count(), "load before": load, "quick": options.quick}
    about["seconds"] = time.monotonic() - began
    options.json.write_text(json.dumps({"about": about, **results}, indent=2) + "\n")
    sys.stdout.write(report("about", about) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
