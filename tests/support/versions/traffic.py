"""The commands of operators to the processes of both versions, and the copies of messages that a broker makes."""

import itertools
import json
import threading
import time

import kombu

from support.versions.fleet import ACTORS
from support.versions.keys import LEADER, MOST_PERMITS, OPERATED, PERMITS, SEMAPHORE
from support.versions.record import WORKING
from support.versions.states import NEW, OLD

COPY_EVERY = 0.2  # seconds between two looks for messages to copy
OPERATE_EVERY = 0.5  # seconds between two actions of operators
ANSWER = 90.0  # seconds until each thread has its last answer
HOLD = 20  # seconds that an operator's hold may last, or be waited for
GONE = {3, 4}  # exit statuses: there is no holder, or it is another one


class Traffic:
    def __init__(self, fleet, redis, chance):
        self._fleet = fleet
        self._redis = redis
        self._chance = chance
        self._ended = threading.Event()
        self.failures = []
        turns = [self._copy, self._operate]
        self._threads = [threading.Thread(target=self._repeat, args=[turn], daemon=True) for turn in turns]
        self._actions = itertools.cycle((self._request_release, self._break, self._hold, self._limit, self._list))
        self._states = itertools.cycle((OLD, NEW, NEW, OLD))  # so that each of the actions comes from both
        self._limits = itertools.cycle((MOST_PERMITS, PERMITS))
        self._numbers = itertools.count(1)
        self._write = fleet.recorder.write

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error):
        self._ended.set()
        for thread in self._threads:
            thread.join(ANSWER + 10)
            if thread.is_alive():
                self.failures.append("an operator has no answer")

    def _repeat(self, turn):
        pause = 0.0
        while not self._ended.wait(pause):
            try:
                pause = turn()
            except Exception as error:
                self.failures.append(f"{turn.__name__}: {error!r}")
                pause = 1.0

    def _copy(self):
        """Bring back each message whose work has just begun, as Redis does; a copy that comes late may run."""
        for working in self._fleet.history.glob(f"{WORKING}*"):
            working.unlink()
            with kombu.Connection(self._redis.conf["broker_url"]) as connection:
                channel = connection.channel()
                channel.qos.restore_by_tag(working.name.removeprefix(WORKING))
            self._write("copied")
        return COPY_EVERY

    def _operate(self):
        next(self._actions)(*(next(self._states) for _ in range(2)))
        return OPERATE_EVERY

    def _run(self, state, *words):
        status, text = self._fleet.operators[state].run("zklock", *words, "--json")
        if status in GONE:
            return None
        if status:
            raise AssertionError(f"{words} by {state}: {status}, {text}")
        answer = json.loads(text)
        self._write("operated", by=state, what=words[0])
        return answer

    def _holder(self, state, key):
        shown = self._run(state, "show", key)
        if not shown or not shown["holders"]:
            return None
        (holder,) = shown["holders"]
        self._write("shown", lock=key, token=int(holder["token"]), pid=holder["pid"])
        return dict(holder)

    def _request_release(self, first, then):
        key = f"kept/{self._chance.choice(ACTORS)}"
        if self._holder(first, key) is None:
            return
        reason = f"request {next(self._numbers)}"
        answer = self._run(then, "request-release", key, "--reason", reason)
        if answer is not None:
            self._write("requested", token=int(answer["holders"][0]["token"]), reason=reason, by=then)

    def _break(self, first, then):
        key = f"broken/{self._chance.choice(ACTORS)}"
        holder = self._holder(first, key)
        if holder is None:
            return
        token = holder["token"]
        if self._run(then, "break", key, "--no-input", "--token", token, "--reason", "a drill") is not None:
            self._write("break", token=int(token), by=then)

    def _hold(self, first, then):
        stay = {"op": next(self._numbers), "key": OPERATED, "o": f"operator-{first}"}
        self._write("invoke", timeout=None, **stay)
        hold = self._run(first, "hold", OPERATED, "--for", f"{HOLD}s", "--wait", f"{HOLD}s", "--reason", "a deploy")
        if hold is None:
            self._write("refused", error="nobody", definite=True, **stay)
            return
        # Without its token: that is younger than those of the first waiters.
        self._write("granted", until=time.monotonic() + HOLD / 2, **stay)
        self._ended.wait(0.3)
        self._write("release", **stay)
        assert self._run(then, "end-hold", OPERATED, "--token", hold["token"]) is not None
        self._write("released", **stay)

    def _limit(self, first, then):
        limit = next(self._limits)
        self._run(first, "limit", SEMAPHORE, str(limit), "--reason", "a drill")
        seen = self._run(then, "limit", SEMAPHORE)
        assert seen is not None
        assert seen["limit_set"]["limit"] == limit, seen

    def _list(self, first, then):
        """Both versions see the same leader, unless it changes meanwhile; and each lock has a known state."""
        self._run(first, "leader", LEADER)
        listed = self._run(then, "list")
        assert listed is not None
        unreadable = [lock["key"] for lock in listed["locks"] if lock["state"] == "unreadable"]
        assert not unreadable, unreadable
