"""Three beats share a schedule, and the one that leads is killed, paused and cut off in turn."""

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import time

import pytest
from support.beats import Beats, each_tick_once, longest_gap
from support.ensemble import Ensemble
from support.postgres import Postgres
from support.proxy import Proxy
from support.zoo import TESTS, Zoo, eventually

SECONDS = 40.0  # that leaders are struck in turn
SESSION_TIMEOUT = 3.0  # seconds
SERVER_TICK = 0.5  # seconds, of the test's servers
TICK = 1.0  # seconds between two ticks of the schedule
ROOM = 0.5  # seconds for a busy machine: three processes start, stop and talk to each other on it
NAMES = ("one", "two", "three")


class Trio:
    def __init__(self, beats, proxies, **env):
        self.beats = beats
        self._proxies = proxies
        for name in NAMES:
            beats.start(name, hosts=proxies[name].address, **env)

    def leader(self):
        return eventually(self.beats.queue, 20, "no beat leads")[0]

    def killed(self, beat):
        beat.kill()
        return beat.start

    def paused(self, beat):
        beat.pause()
        return beat.resume

    def cut_off(self, beat):
        proxy = self._proxies[beat.name]
        proxy.hang = True
        return proxy.heal

    def wait_all_alive(self, pids):
        eventually(
            lambda: {beat.name for beat in self.beats.queue()} == set(NAMES) and len(self.beats.queue()) == len(NAMES),
            20,
            "a beat did not come back into the queue",
        )
        for beat in self.beats.all.values():
            assert beat.alive, f"{beat.name} has ended"
            assert pids.get(beat.name, beat.process.pid) == beat.process.pid


@pytest.fixture
def trio(arena, tmp_path):
    with contextlib.ExitStack() as stack:
        proxies = {name: stack.enter_context(Proxy(arena.address)) for name in NAMES}
        beats = stack.enter_context(Beats(arena, tmp_path, {"often": TICK}, session_timeout=SESSION_TIMEOUT))
        yield Trio(beats, proxies)
        for proxy in proxies.values():
            proxy.heal()


@pytest.mark.timeout(900)
def test_three_beats_send_each_tick_once_while_leaders_fail(trio):
    beats = trio.beats
    begin = beats.wait_sent(1)[0].at
    for strike in itertools.cycle([trio.killed, trio.paused, trio.cut_off]):
        if time.monotonic() - begin > SECONDS:
            break
        trio.wait_all_alive({})
        pids = {beat.name: beat.process.pid for beat in beats.all.values()}
        leader = trio.leader()
        undo = strike(leader)
        if strike == trio.killed:
            del pids[leader.name]
        # Until the next one leads, and has sent a few: then the one before comes back, and believes that it leads.
        beats.wait_sent(3, since=time.monotonic() + SESSION_TIMEOUT / 2)
        undo()
        trio.wait_all_alive(pids)
    end = time.monotonic()
    messages = beats.sent()
    each_tick_once(messages)
    longest = longest_gap(messages, begin, end)
    assert longest <= SESSION_TIMEOUT + TICK + 2 * SERVER_TICK + ROOM


@pytest.fixture
def beats(arena, tmp_path):
    with Beats(arena, tmp_path, {"often": 0.5}) as beats:
        yield beats


@pytest.mark.timeout(90)
def test_a_leader_paused_before_it_sends_a_tick_sends_nothing_late(beats):
    """Its successor has sent later ticks by then. This one tick is lost, and no other."""
    first, second = beats.start("first", "second")
    eventually(lambda: len(beats.queue()) == 2, 20, "they are not both in the queue")
    leader, standby = beats.queue()
    beats.wait_sent(2)
    leader.strike(signal.SIGSTOP)
    beats.wait_queue(standby, timeout=10)
    beats.wait_sent(2, since=time.monotonic())
    leader.resume()
    beats.wait_queue(standby, leader)
    beats.wait_sent(2, since=time.monotonic())
    messages = beats.sent()
    each_tick_once(messages)
    ticks = [message.tick for message in messages]
    assert len(set(range(1, ticks[-1] + 1)) - set(ticks)) == 1
    assert "beat no longer leads" in leader.said
    assert {first.alive, second.alive} == {True}


@pytest.mark.timeout(120)
def test_beats_stand_by_during_an_outage_and_continue_after_it(tmp_path):
    with Ensemble(nodes=1) as ensemble, contextlib.ExitStack() as stack:
        server = ensemble.servers[0]
        server.kill()
        zoo = stack.enter_context(Zoo(ensemble.hosts, ensemble))
        beats = stack.enter_context(Beats(zoo, tmp_path, {"often": 0.5}))
        pair = beats.start("first", "second")
        for beat in pair:
            eventually(lambda beat=beat: "cannot join the queue and keeps trying" in beat.said, 20)
        for _ in range(2):
            server.start()
            server.wait_ready()
            beats.wait_sent(3, since=time.monotonic())
            eventually(lambda: len(beats.queue()) == 2, 20, "they are not both in the queue")
            leader = beats.queue()[0]
            said = len(leader.said)
            server.kill()
            eventually(lambda leader=leader, said=said: "no longer leads" in leader.said[said:], 10)
        server.start()
        server.wait_ready()
        beats.wait_sent(3, since=time.monotonic())
        assert [beat.alive for beat in pair] == [True, True]
        messages = beats.sent()
        each_tick_once(messages)
        assert messages[-1].tick - len(messages) <= 2  # one for each outage, if it came between record and answer


ADD = """
import django; django.setup()
from django_celery_beat.models import IntervalSchedule, PeriodicTask
every = IntervalSchedule.objects.create(every=3, period=IntervalSchedule.SECONDS)
PeriodicTask.objects.create(name="once", task="tick", interval=every, one_off=True)
"""


def run(*arguments, **env):
    subprocess.run([sys.executable, *arguments], cwd=TESTS, env={**os.environ, **env}, check=True)


def site(directory, database):
    pytest.importorskip("django_celery_beat")
    (directory / "sitesettings.py").write_text(
        "from settings import *\n"
        "INSTALLED_APPS = [*INSTALLED_APPS, 'django_celery_beat']\n"
        f"DATABASES['default'] = {database!r}\n"
    )
    path = os.pathsep.join([str(directory), str(TESTS), str(TESTS.parent)])
    env = {"DJANGO_SETTINGS_MODULE": "sitesettings", "PYTHONPATH": path}
    env["BEAT_CONF"] = json.dumps({"zklock_beat_scheduler": "django"})  # the name that the package gives it
    run("-m", "django", "migrate", "-v0", "--skip-checks", **env)
    return env


@pytest.mark.timeout(180)
@pytest.mark.parametrize("change", [(), ("stop",), ("cut",), ("stop", "cut")], ids="-".join)
def test_beats_outlive_their_database(arena, tmp_path, change):
    with contextlib.ExitStack() as stack:
        database = stack.enter_context(Postgres())
        env = site(tmp_path, {**database.settings, "CONN_MAX_AGE": None})  # connections stay, and break
        proxies = {name: stack.enter_context(Proxy(arena.address)) for name in NAMES}
        beats = stack.enter_context(Beats(arena, tmp_path, {"often": TICK}, session_timeout=SESSION_TIMEOUT))
        trio = Trio(beats, proxies, **env)
        beats.wait_sent(2)
        trio.wait_all_alive({})
        leaders = iter(beats.queue())  # read it now: without the database, each is in the queue for milliseconds only
        with database.down():
            if "stop" in change:
                leader = next(leaders)
                assert leader.stop(20) == 0
                leader.start()
            heal = trio.cut_off(next(leaders)) if "cut" in change else lambda: None
            if change:  # until the pauses are as long as they get, except for the beat that is cut off
                eventually(lambda: sum(beat.said.count("OperationalError(") > 3 for beat in beats.all.values()) > 1, 60)
            else:
                beats.wait_sent(5, since=time.monotonic())
        heal()
        back = time.monotonic()
        assert beats.wait_sent(1, since=back)[0].at < back + 10
        trio.wait_all_alive({beat.name: beat.process.pid for beat in beats.all.values()})
        beats.wait_sent(3, since=time.monotonic())
        each_tick_once(beats.sent())


@pytest.mark.timeout(120)
def test_the_scheduler_of_django_celery_beat_can_be_wrapped(arena, tmp_path):
    """Its entries go on where the last leader stopped, also where that had no time to save their rows."""
    env = site(tmp_path, {"ENGINE": "django.db.backends.sqlite3", "NAME": str(tmp_path / "db")})
    with Beats(arena, tmp_path, {"often": 1.0, "rare": 3600.0}) as beats:
        leader, standby = beats.start("first", **env) + beats.start("second", **env)
        eventually(lambda: len(beats.queue()) == 2, 30, "they are not both in the queue")
        leader, standby = beats.queue()
        beats.wait_sent(1)
        # Rows are saved at the first message, and again after minutes: ZooKeeper alone will know of this one.
        run("-c", ADD, **env)
        eventually(lambda: "once" in {message.entry for message in beats.sent()}, 20)
        leader.kill()
        after = beats.wait_sent(6, since=time.monotonic() + 1)
        assert [message.tick for message in beats.sent() if message.entry == "once"] == [1]
        messages = [message for message in beats.sent() if message.entry == "often"]
        each_tick_once(messages)
        assert [message.tick for message in messages] == list(range(1, len(messages) + 1))
        assert "rare" not in {message.entry for message in beats.sent()}
        assert longest_gap(messages, messages[0].at, after[-1].at) < beats.session_timeout + 1 + 2 * SERVER_TICK + ROOM
        assert standby.stop() == 0
