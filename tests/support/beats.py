"""Real `celery beat` processes that share a schedule, and the messages that they sent."""

from __future__ import annotations

import contextlib
import itertools
import json
import signal
from collections.abc import Mapping
from dataclasses import dataclass

from support import forked
from support.zoo import TESTS, eventually


@dataclass(frozen=True, slots=True)
class Sent:
    entry: str
    tick: int
    token: int
    at: float  # on time.monotonic()


class Beat:
    def __init__(self, beats, name, hosts, env):
        self.name = name
        self.home = beats.home / name
        self.home.mkdir()
        self.log = self.home / "log"
        self._command = [
            *("-m", "celery", "-A", "support.beatapp", "beat", "--loglevel=INFO"),
            *(f"--schedule={self.home / 'schedule'}", f"--pidfile={self.home / 'pid'}", "--max-interval=30"),
        ]
        own = {"BEAT_HOME": str(beats.home), "BEAT_STRIKE": str(self.home / "strike")}
        own["BEAT_SCHEDULE"] = json.dumps(beats.schedule)
        self._env = {**beats.zoo.environment(hosts, beats.session_timeout), **own, **env}
        self.start()

    def start(self):
        with contextlib.suppress(FileNotFoundError):
            (self.home / "pid").unlink()
        with self.log.open("ab") as log:
            self.process = forked.start(self._command, cwd=TESTS, env=self._env, stdout=log, stderr=log)

    @property
    def said(self):
        return self.log.read_text(errors="replace")

    @property
    def alive(self):
        return self.process.poll() is None

    def kill(self):
        self.process.kill()
        self.process.wait()

    def stop(self, timeout=30):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout)

    def strike(self, number):
        """Have it struck when it has recorded the next tick, and not sent it yet; wait for that."""
        draft, note = self.home / "draft", self.home / "strike"
        draft.write_text(str(int(number)))
        draft.rename(note)
        eventually(lambda: not note.exists(), 10, "it takes no tick")

    def pause(self):
        self.process.send_signal(signal.SIGSTOP)

    def resume(self):
        self.process.send_signal(signal.SIGCONT)


class Beats:
    def __init__(self, zoo, home, schedule, *, session_timeout=2.0):
        self.zoo = zoo
        self.home = home
        self.session_timeout = session_timeout
        self.schedule = {
            name: {"task": "tick", **(entry if isinstance(entry, Mapping) else {"schedule": entry})}
            for name, entry in schedule.items()
        }
        self._messages = home / "messages"
        self._messages.mkdir()
        self.all = {}

    def __enter__(self):
        return self

    def __exit__(self, *error):
        for beat in self.all.values():
            with contextlib.suppress(ProcessLookupError):
                beat.resume()
                beat.process.terminate()  # so that they are out of the queue
        for beat in self.all.values():
            try:
                beat.process.wait(30)
            finally:
                beat.kill()
                print(f"--- {beat.name}\n{beat.said}")

    def start(self, *names, hosts=None, **env):
        for name in names:
            self.all[name] = Beat(self, name, hosts, env)
        return [self.all[name] for name in names]

    def queue(self):
        """Return the beats in the queue, the leader first. Dead ones stay until their session ends."""
        pids = {beat.process.pid: beat for beat in self.all.values()}
        payloads = self.zoo.payloads("celery-beat/beatapp")
        return [pids[payload.pid] for payload in payloads if payload is not None and payload.pid in pids]

    def wait_queue(self, *beats, timeout=20):
        eventually(lambda: self.queue() == list(beats), timeout, f"the queue is not {[beat.name for beat in beats]}")

    def records(self):
        """Return the number of the runs of each entry."""
        data = self.zoo.client.get(f"{self.zoo.base}/!beat/beatapp")[0]
        return {name: count for name, (_, count) in json.loads(data)["runs"].items()}

    def sent(self):
        messages = []
        for path in self._messages.glob("*.msg"):
            label = json.loads(path.read_text())["headers"]["zklock_beat"]
            messages.append(Sent(**label, at=int(path.name.partition("_")[0]) / 1000))
        return sorted(messages, key=lambda message: message.at)

    def wait_sent(self, count, timeout=20, since=0.0):
        def found():
            messages = [message for message in self.sent() if message.at > since]
            return messages if len(messages) >= count else []

        return eventually(found, timeout, f"there were no {count} messages within {timeout:g} s")


def each_tick_once(messages):
    for entry in {message.entry for message in messages}:
        mine = [message for message in messages if message.entry == entry]
        ticks = [message.tick for message in mine]
        assert ticks == sorted(set(ticks)), (entry, ticks)
        tokens = [message.token for message in mine]
        assert tokens == sorted(tokens), (entry, tokens)


def longest_gap(messages, begin, end):
    moments = [begin, *(message.at for message in messages if begin < message.at < end), end]
    return max(later - earlier for earlier, later in itertools.pairwise(moments))
