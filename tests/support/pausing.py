"""
The pause test: a holder is stopped in its transaction until another one has its lock, has written and committed.

Then it goes on, and must not be able to commit. Every way to fence takes its turn.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from django.db import connections, transaction

from django_zklock import Hold, zk_lock
from django_zklock.exceptions import LockLost, StaleToken
from support.fenced_writes import by_get, save, update, update_by_join
from support.ledgers.models import Account
from support.zoo import Zoo

USING = "ledger"
TIMEOUT = 40  # seconds for one answer, on a busy machine


# --- in the processes


def by_fence(using: str, hold: Hold, pk: int) -> None:
    row = Account(pk=pk)
    row._state.db = using  # it is not read before: SQLite refuses to write after a read if another one wrote meanwhile
    hold.fence(row, refresh=True)
    row.save()


def by_name(using: str, hold: Hold, pk: int) -> None:
    with hold.fenced(f"account/{pk}", using=using):
        Account.objects.using(using).filter(pk=pk).update(fencing_token=hold.token)


WAYS: dict[str, Callable[[str, Hold, int], None]] = {
    call.__name__: call for call in (by_get, by_fence, update, update_by_join, save, by_name)
}


def write(way: str, pk: int, pause: bool) -> dict[str, Any]:
    """Write as the holder of the account's lock; with `pause` stop this process when the transaction is open."""
    lock = zk_lock(f"account/{pk}")
    hold = lock.acquire(timeout=TIMEOUT)
    assert hold is not None
    answer: dict[str, Any] = {"token": hold.token, "lost": False, "committed": True}
    try:
        with transaction.atomic(using=USING):
            with connections[USING].cursor() as cursor:
                cursor.execute("SELECT 1")
            if pause:
                os.kill(os.getpid(), signal.SIGSTOP)
            answer["lost"] = hold.lost
            WAYS[way](USING, hold, pk)
    except StaleToken as error:
        answer.update(committed=False, error=type(error).__name__)
    with contextlib.suppress(LockLost):
        lock.release()
    return answer


def main() -> None:
    """Do as each line says, and answer with a line."""
    for line in sys.stdin:
        print(json.dumps(write(**json.loads(line))), flush=True)


# --- in the test


class Writer:
    """One process that writes."""

    def __init__(self, zoo: Zoo, databases: dict[str, Any], session_timeout: float) -> None:
        self._process: subprocess.Popen[str] = zoo.spawn(
            "from support.pausing import main; main()",
            ZKLOCK_URL=zoo.url(session_timeout=session_timeout),
            TEST_DATABASES=json.dumps(databases),
        )

    def tell(self, **command: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "a writer has ended: " + self._process.communicate()[1]
        answer: dict[str, Any] = json.loads(line)
        return answer

    def wait_stopped(self) -> None:
        status = os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        assert status is not None
        assert status.si_code == os.CLD_STOPPED, "a writer has ended: " + self._process.communicate()[1]

    def resume(self) -> None:
        os.kill(self._process.pid, signal.SIGCONT)

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


@contextlib.contextmanager
def pair(zoo: Zoo, databases: dict[str, Any], session_timeout: float) -> Iterator[tuple[Writer, Writer]]:
    """Two processes that write."""
    with contextlib.ExitStack() as stack:
        first, second = (Writer(zoo, databases, session_timeout) for _ in range(2))
        stack.callback(first.end)
        stack.callback(second.end)
        yield first, second


def play(writers: tuple[Writer, Writer], using: str, way: str, pk: int, number: int) -> float:
    """Play one round; return how long the first one was stopped, in seconds."""
    a, b = writers
    a.tell(way=way, pk=pk, pause=True)
    a.wait_stopped()
    began = time.monotonic()
    b.tell(way=way, pk=pk, pause=False)
    newer = b.answer()
    a.resume()
    stopped = time.monotonic() - began
    older = a.answer()
    assert newer["committed"], f"round {number}, {way}: the new holder could not write: {newer}"
    assert older["lost"], f"round {number}, {way}: the pause did not outlast the lease: {older}"
    assert older["token"] < newer["token"]
    assert older.get("error") == "StaleToken", f"round {number}, {way}: the late write was not refused: {older}"
    row = Account.objects.using(using).get(pk=pk)
    assert row.fencing_token == newer["token"], f"round {number}, {way}"
    return stopped
