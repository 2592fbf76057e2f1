"""A holder that is paused in its transaction and continues after a newer one has written commits nothing."""

import contextlib
import json
import os
import signal
import subprocess
import sys

import pytest
from django.db import connections, transaction
from support.ensemble import Ensemble
from support.fenced_writes import by_get, save, update, update_by_join
from support.ledgers.models import Account
from support.zoo import Zoo, next_line

from django_zklock import zk_lock
from django_zklock.exceptions import LockLost, StaleToken

pytestmark = pytest.mark.chaos

USING = "ledger"
ROUNDS = 5  # of each way
TICK = 0.2
SESSION_TIMEOUT = 0.8


def by_fence(using, hold, pk):
    row = Account(pk=pk)
    row._state.db = using  # it is not read before: SQLite refuses to write after a read if another one wrote meanwhile
    hold.fence(row, refresh=True)
    row.save()


def by_name(using, hold, pk):
    with hold.fenced(f"account/{pk}", using=using):
        Account.objects.using(using).filter(pk=pk).update(fencing_token=hold.token)


WAYS = {call.__name__: call for call in (by_get, by_fence, update, update_by_join, save, by_name)}


def write(way, pk, pause):
    """Write as the holder of the account's lock; with `pause` stop this process when the transaction is open."""
    lock = zk_lock(f"account/{pk}")
    hold = lock.acquire(timeout=40)
    assert hold is not None
    answer = {"token": hold.token, "lost": False, "error": None}
    try:
        with transaction.atomic(using=USING):
            with connections[USING].cursor() as cursor:
                cursor.execute("SELECT 1")
            if pause:
                os.kill(os.getpid(), signal.SIGSTOP)
            answer["lost"] = hold.lost
            WAYS[way](USING, hold, pk)
    except StaleToken as error:
        answer["error"] = type(error).__name__
    with contextlib.suppress(LockLost):
        lock.release()
    return answer


def main():
    for line in sys.stdin:
        print(json.dumps(write(**json.loads(line))), flush=True)


Writer = subprocess.Popen[str]


@pytest.fixture
def writers(database_settings):
    with Ensemble(tick=TICK) as ensemble, contextlib.ExitStack() as stack:
        zoo = stack.enter_context(Zoo(ensemble.hosts, ensemble))
        databases, url = json.dumps({USING: database_settings}), zoo.url(session_timeout=SESSION_TIMEOUT)
        script = f"from {__name__} import main; main()"
        started = [zoo.spawn(script, ZKLOCK_URL=url, TEST_DATABASES=databases) for _ in range(2)]
        for writer in started:
            stack.callback(writer.communicate)
            stack.callback(writer.kill)
        yield started


def tell(writer, **command):
    print(json.dumps(command), file=writer.stdin, flush=True)


def answer(writer):
    said = next_line(writer)
    assert said, "a writer has ended: " + writer.communicate()[1]
    return json.loads(said)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("way", WAYS)
def test_no_paused_holder_ever_commits(way, writers, ledger):
    row = Account(name="a")
    row.save(using=ledger)
    older, newer = writers
    for _ in range(ROUNDS):
        tell(older, way=way, pk=row.pk, pause=True)
        status = os.waitid(os.P_PID, older.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        assert status is not None
        assert status.si_code == os.CLD_STOPPED, "a writer has ended: " + older.communicate()[1]
        tell(newer, way=way, pk=row.pk, pause=False)
        second = answer(newer)
        os.kill(older.pid, signal.SIGCONT)
        first = answer(older)
        assert second["error"] is None, second
        assert first["lost"], f"the pause did not outlast the lease: {first}"
        assert first["token"] < second["token"]
        assert first["error"] == "StaleToken", f"the late write was not refused: {first}"
        row.refresh_from_db()
        assert row.fencing_token == second["token"]
