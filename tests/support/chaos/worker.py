"""A process that takes locks as lines of JSON say. A line names an owner, which is a thread, or is done at once."""

from __future__ import annotations

import contextlib
import json
import queue
import random
import signal
import sys
import threading
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.chaos.history import Recorder
from support.chaos.random_work import CHECK_EVERY, RandomWork, Struck, on_alarm, wanted
from support.chaos.subjects import KazooSubject, Lost, Refused, ZkLockSubject


@dataclass
class Holding:
    op: int
    held: Any  # of ours or of kazoo's
    lost: bool = False


class Worker:
    def __init__(self, lock, recorder):
        self.lock = lock
        self.recorder = recorder
        self._ops = iter(range(1, sys.maxsize))
        self._holdings = {}  # by owner and key
        self._stops = defaultdict(threading.Event)
        self._owners = {"main": queue.SimpleQueue()}
        self._random_work_ended = threading.Event()
        self._output = threading.Lock()

    def run(self):
        threading.Thread(target=self._read, daemon=True, name="reader").start()
        self._serve("main")
        self.lock.close()

    def _read(self):
        for line in sys.stdin:
            command = json.loads(line)
            owner = command.get("as")
            if owner is None:
                self._answer(command)
            else:
                self._queue_of(owner).put(command)
        for waiting in self._owners.values():
            waiting.put(None)

    def _queue_of(self, owner):
        if owner not in self._owners:
            self._owners[owner] = queue.SimpleQueue()
            threading.Thread(target=self._serve, args=(owner,), name=owner, daemon=True).start()
        return self._owners[owner]

    def _serve(self, owner):
        while True:
            try:
                command = self._owners[owner].get()
                if command is None:
                    return
                self._answer(command)
            except Struck:
                continue  # it came too late for the call that it was meant for

    def _answer(self, command):
        what = command.pop("do")
        do = getattr(self, f"do_{what}", None) or getattr(self.lock, what)
        number = command.pop("id")
        command.pop("as", None)
        try:
            answer = {"answer": do(**command)}
        except Exception as error:
            answer = {"failed": f"{type(error).__name__}: {error}"}
        with self._output:
            sys.stdout.write(json.dumps({"id": number, **answer}) + "\n")
            sys.stdout.flush()

    def do_acquire(self, key, timeout, **options):
        owner = threading.current_thread().name
        op = next(self._ops)
        self.recorder.write("invoke", op=op, key=key, timeout=timeout, **wanted(options))
        try:
            held = self.lock.acquire(key, timeout, options)
        except (Refused, Struck) as error:
            kind = str(error) if isinstance(error, Refused) else "Struck"
            t = self.recorder.write("refused", op=op, key=key, error=kind)
            return {"granted": False, "error": kind, "t": t}
        except BaseException as error:
            self.recorder.write("refused", op=op, key=key, error=repr(error))
            raise
        t = self.recorder.write("granted", op=op, key=key, token=held.token, until=held.until())
        self._holdings[owner, key] = Holding(op, held)
        return {"granted": True, "token": held.token, "t": t}

    def do_release(self, key):
        holding = self._holdings.pop((threading.current_thread().name, key))
        self.recorder.write("release", op=holding.op, key=key)
        error = ""
        try:
            holding.held.release()
        except (Lost, Struck) as lost:
            error = str(lost) or "Struck"
        t = self.recorder.write("released" if not error else "release_failed", op=holding.op, key=key, error=error)
        return {"t": t, "error": error}

    def do_work(self, key, seconds=None):
        holding = self._holdings[threading.current_thread().name, key]
        stop = self._stops[key]
        deadline = float("inf") if seconds is None else time.monotonic() + seconds
        while time.monotonic() < deadline and not stop.is_set():
            if not self._check(key, holding):
                return {"lost": True, "t": time.monotonic()}
            time.sleep(CHECK_EVERY)
        stop.clear()
        return {"lost": False, "t": time.monotonic()}

    def do_turn(self, key, timeout, seconds, **options):
        answer = self.do_acquire(key, timeout, **options)
        if answer["granted"]:
            answer["lost"] = self.do_work(key, seconds)["lost"]
            answer["release"] = self.do_release(key)
        return answer

    def do_check(self, key):
        return self._check(key, self._holdings[threading.current_thread().name, key])

    def _check(self, key, holding):
        before = time.monotonic()
        try:
            holding.held.check()
        except Lost as error:
            if not holding.lost:
                holding.lost = True
                self.recorder.write("lost", op=holding.op, key=key, reason=str(error))
            return False
        self.recorder.write("valid", t=before, op=holding.op, key=key, until=holding.held.until())
        return True

    def do_random_work(self, keys, seconds, seed):
        """`keys` says for each as what it may be taken."""
        random_work = RandomWork(self.lock, self.recorder, self._ops, keys, random.Random(seed))
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not self._random_work_ended.is_set():
            random_work.once()

    def do_end_random_work(self):
        self._random_work_ended.set()

    def do_stop(self, key):
        self._stops[key].set()

    def do_alarm(self, after):
        signal.setitimer(signal.ITIMER_REAL, after)

    def do_chatter(self, every):
        def chat():
            while True:
                with contextlib.suppress(Exception):
                    self.lock.chatter()
                time.sleep(every)

        threading.Thread(target=chat, daemon=True, name="chatter").start()


def main():
    data = json.loads(sys.argv[1])
    signal.signal(signal.SIGALRM, on_alarm)
    threading.current_thread().name = "main"
    recorder = Recorder(Path(data["directory"]), data["name"])
    if data["lock"] == "kazoo":
        lock = KazooSubject(data["hosts"], data["base"], data["session_timeout"])
    else:
        lock = ZkLockSubject(data["url"])
    lock.connect()
    print(json.dumps({"id": 0, "answer": "ready"}), flush=True)
    Worker(lock, recorder).run()


if __name__ == "__main__":
    main()
