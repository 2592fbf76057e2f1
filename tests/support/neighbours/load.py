"""Processes of two clients that compete for one lock, some of which are killed, and their common history."""

import itertools
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack

from support.chaos.history import Recorder, read
from support.neighbours.protocol import TIMEOUT, OtherClient, OtherClientGone
from support.neighbours.sides import Side

LONGEST = 0.01  # seconds that a lock is held
EXCLUSIVE = {"mutex", "selector", "election", "leader"}  # plain locks by other names
Start = Callable[[], OtherClient]


class Load:
    """
    Actors in processes of several clients, which acquire and release one lock; driven and recorded from here.

    A grant is written down once its answer is here, and a release before it is asked for: so nobody is taken to have
    held the lock for longer than it did, and what overlaps in the history did overlap.
    """

    def __init__(self, directory, path, seed=1):
        self.grants = Counter()  # by the name of the process
        self._directory = directory
        self._path = path
        self._random = random.Random(seed)
        self._stop = threading.Event()
        self._threads = []
        self._errors = []
        self._processes = {}
        self._nemesis = Recorder(directory, "nemesis")
        self._recorders = [self._nemesis]
        self._stack = ExitStack()

    def add(self, name, start, kinds, actors=2):
        process = self._stack.enter_context(start())
        self._processes[name] = process
        recorder = Recorder(self._directory, name)
        self._recorders.append(recorder)
        for number in range(actors):
            seed = self._random.random()
            numbers = itertools.count(number * 1_000_000)
            arguments = (name, process, recorder, kinds, numbers, random.Random(seed))
            thread = threading.Thread(target=self._drive, args=arguments, name=f"{name}.{number}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def kill(self, name):
        self._nemesis.write("nemesis", what="kill", target=name)
        self._processes.pop(name).kill()

    def run(self, seconds):
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not self._errors:
            time.sleep(0.05)

    def end(self):
        self._stop.set()
        for thread in self._threads:
            thread.join(TIMEOUT)
        stuck = [thread.name for thread in self._threads if thread.is_alive()]
        self._stack.close()
        for recorder in self._recorders:
            recorder.close()
        assert not stuck, f"still waiting: {stuck}"
        if self._errors:
            raise self._errors[0]
        return read(sorted(self._directory.glob("*.jsonl")))

    def _drive(self, *arguments):
        try:
            while not self._stop.is_set():
                self._turn(*arguments)
        except OtherClientGone:
            pass
        except BaseException as error:
            self._errors.append(error)

    def _turn(
        self,
        name,
        process,
        recorder,
        kinds,
        numbers,
        chance,
    ):
        actor = threading.current_thread().name
        side = Side(process, chance.choice(kinds), self._path)
        kind = side.kind.partition("+")[0]
        kind = "lock" if kind in EXCLUSIVE else kind
        about = {"op": next(numbers), "key": "k"}
        recorder.write("invoke", timeout=None, kind=kind, **about)
        try:
            answer = side.begin(actor).result(TIMEOUT)
        except OtherClientGone:
            recorder.write("refused", error="its process was killed", definite=False, **about)
            raise
        assert answer == "true"
        recorder.write("granted", token=0, until=None, **about)
        self.grants[name] += 1
        time.sleep(chance.uniform(0, LONGEST))
        recorder.write("release", **about)
        side.release(actor)
        recorder.write("released", **about)
