"""Three beats share a schedule, and the one that leads is killed, paused and cut off in turn."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.beats import Beat, Beats, each_tick_once, longest_gap
from support.chaos.report import Figures
from support.proxy import Proxy
from support.zoo import Zoo, eventually

pytestmark = [pytest.mark.zookeeper, pytest.mark.chaos, pytest.mark.scenario("F69")]

SESSION_TIMEOUT = 3.0  # seconds
SERVER_TICK = 0.5  # seconds, of the test's servers
TICK = 1.0  # seconds between two ticks of the schedule
ROOM = 0.5  # seconds for a busy machine: three processes start, stop and talk to each other on it
NAMES = ("one", "two", "three")


class Trio:
    """Three beats, each behind a proxy of its own, and ways to strike one of them."""

    def __init__(self, beats: Beats, proxies: dict[str, Proxy]) -> None:
        self.beats = beats
        self._proxies = proxies
        for name in NAMES:
            beats.start(name, hosts=proxies[name].address)

    def leader(self) -> Beat:
        return eventually(self.beats.queue, 20, "nobody leads")[0]

    def killed(self, beat: Beat) -> Callable[[], None]:
        """Kill it; what is returned starts it again."""
        beat.kill()
        return beat.start

    def paused(self, beat: Beat) -> Callable[[], None]:
        """Pause it; what is returned lets it go on."""
        beat.pause()
        return beat.resume

    def cut_off(self, beat: Beat) -> Callable[[], None]:
        """Let nothing through between it and ZooKeeper; what is returned does so again."""
        proxy = self._proxies[beat.name]
        proxy.hang = True
        return proxy.heal

    def wait_all_alive(self, pids: dict[str, int]) -> None:
        """Wait until each is in the queue; fail if one has ended."""
        eventually(
            lambda: {beat.name for beat in self.beats.queue()} == set(NAMES) and len(self.beats.queue()) == len(NAMES),
            20,
            "a beat did not come back into the queue",
        )
        for beat in self.beats.all.values():
            assert beat.alive, f"{beat.name} has ended"
            assert pids.get(beat.name, beat.process.pid) == beat.process.pid


@pytest.fixture
def trio(arena: Zoo, tmp_path: Path) -> Iterator[Trio]:
    with contextlib.ExitStack() as stack:
        proxies = {name: stack.enter_context(Proxy(arena.address)) for name in NAMES}
        beats = stack.enter_context(Beats(arena, tmp_path, {"often": TICK}, session_timeout=SESSION_TIMEOUT))
        yield Trio(beats, proxies)
        for proxy in proxies.values():
            proxy.heal()


@pytest.mark.timeout(900)
def test_three_beats_send_each_tick_once_while_their_leader_is_struck(
    trio: Trio, figure: Figures, pytestconfig: pytest.Config
) -> None:
    """No tick is sent twice, and none is missing for longer than a session timeout and a tick."""
    seconds = pytestconfig.getoption("--beat-seconds")
    beats = trio.beats
    begin = beats.wait_sent(1)[0].at
    struck: Counter[str] = Counter()
    gaps: dict[str, list[float]] = {}
    for strike in itertools.cycle([trio.killed, trio.paused, trio.cut_off]):
        if time.monotonic() - begin > seconds:
            break
        trio.wait_all_alive({})
        pids = {beat.name: beat.process.pid for beat in beats.all.values()}
        leader = trio.leader()
        before = beats.sent()[-1]
        undo = strike(leader)
        if strike == trio.killed:
            del pids[leader.name]
        # Until the next one leads, and has sent a few: then the one before comes back, and believes that it leads.
        after = beats.wait_sent(3, since=time.monotonic() + SESSION_TIMEOUT / 2)
        undo()
        trio.wait_all_alive(pids)
        struck[strike.__name__] += 1
        gaps.setdefault(strike.__name__, []).append(longest_gap(beats.sent(), before.at, after[-1].at))
    end = time.monotonic()
    messages = beats.sent()
    each_tick_once(messages)
    longest = longest_gap(messages, begin, end)
    figure("strikes", ", ".join(f"{count} {name}" for name, count in struck.items()))
    figure("ticks sent", len(messages))
    figure("ticks lost", messages[-1].tick - len(messages))
    for name, found in gaps.items():
        figure.spread(f"longest time without a tick, {name}", found)
    assert longest <= SESSION_TIMEOUT + TICK + 2 * SERVER_TICK + ROOM
