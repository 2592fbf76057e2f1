"""
Control another client's process: one line for each command, one for each answer.

A command is `NUMBER ACTOR VERB KIND PATH [MILLISECONDS [LIMIT]]`, an answer `NUMBER ok|error TEXT`. What one actor is
told is done in order, and what another is told meanwhile; so an actor may wait for a lock while the next one takes it.
"""

import contextlib
import itertools
import subprocess
import sys
import threading
from concurrent.futures import Future
from pathlib import Path

from support import debian

TIMEOUT = 30.0  # seconds that a busy machine may take


class OtherClientError(Exception): ...


class OtherClientGone(Exception):
    """Its process ended before it answered."""


class OtherClient:
    """One process of another client; on Linux it ends with this one, even when that is killed."""

    def __init__(self, command, **env):
        self._command = command
        self._env = env
        self._numbers = itertools.count(1)
        self._waiting = {"0": Future()}
        self._lock = threading.Lock()  # guards what is written, and _waiting
        self._errors = []
        self._process = None
        self._readers = []

    def __enter__(self):
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            [*debian.tied("KILL"), *self._command],
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            encoding="utf-8",
            env=self._env or None,
            cwd=Path(__file__).parent,
        )
        for target, stream in ((self._read, self._process.stdout), (self._note, self._process.stderr)):
            assert stream is not None
            self._readers.append(threading.Thread(target=target, args=(stream,), daemon=True))
            self._readers[-1].start()
        ready = self._waiting["0"]
        try:
            ready.result(TIMEOUT)
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(self, *error):
        self.kill()

    def kill(self):
        if self._process is not None:
            self._process.kill()
            for reader in self._readers:
                reader.join(TIMEOUT)
            with contextlib.suppress(BrokenPipeError):
                self._process.__exit__(None, None, None)  # which waits for it, and closes the pipes

    def send(self, actor, verb, kind, path, *more):
        assert self._process is not None
        assert self._process.stdin is not None
        answer = Future()
        with self._lock:
            number = str(next(self._numbers))
            self._waiting[number] = answer
            try:
                print(number, actor, verb, kind, path, *more, file=self._process.stdin, flush=True)
            except (OSError, ValueError):  # its end of the pipe is closed, or ours
                self._waiting.pop(number)
                answer.set_exception(OtherClientGone())
        return answer

    def acquire(self, actor, kind, path, wait=-1, name=""):
        """Have an actor take a lock, waiting so many seconds, -1: for ever; the answer is "true" or "false"."""
        return self.send(actor, "acquire", kind, path, -1 if wait < 0 else round(wait * 1000), name)

    def try_acquire(self, actor, kind, path, wait=10, name=""):
        return self.acquire(actor, kind, path, wait, name).result(TIMEOUT) == "true"

    def release(self, actor, kind, path):
        self.ask(actor, "release", kind, path)

    def ask(self, actor, verb, kind, path, *more):
        return self.send(actor, verb, kind, path, *more).result(TIMEOUT)

    def _read(self, stream):
        for line in stream:
            number, how, what = [*line.rstrip("\n").split(" ", 2), ""][:3]
            with self._lock:
                answer = self._waiting.pop(number)
            if how == "ok":
                answer.set_result(what)
            else:
                answer.set_exception(OtherClientError(what))
        with self._lock:
            left, self._waiting = self._waiting, {}
        for answer in left.values():
            answer.set_exception(OtherClientGone("".join(self._errors[-30:])))

    def _note(self, stream):
        for line in stream:
            self._errors.append(line)
            del self._errors[:-200]


def kazoo(hosts, session_timeout=10.0):
    """Return a process with one client of kazoo's, which is started as a context; paths are from the root on."""
    program = str(Path(__file__).with_name("kazooprocess.py"))
    return OtherClient([sys.executable, "-u", program, hosts, str(round(session_timeout * 1000))])
