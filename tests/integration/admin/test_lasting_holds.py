"""Leaders, beat, `zklock run` and leases are meant to hold their locks: no incident, unless their work falls silent."""

import contextlib
import shlex
import signal
import threading

import pytest
from support.adminsite import LIST, user_with
from support.beats import Beats
from support.faults import BackgroundCall
from support.locking import MANAGE, ending, zklock
from support.serving import Serving
from support.zoo import eventually

from django_zklock import inspection, zk_leader, zk_lock
from django_zklock.management.exit_codes import ExitCode
from django_zklock.report import verdict

pytestmark = [pytest.mark.django_db, pytest.mark.timeout(180)]

LONG = 1.0  # seconds after which a hold is long; 60 in production
KEY = "celery-beat/beatapp"
LEASE = """import time, zklock_client
with zklock_client.ZkLockClient(["{address}"]).lock("device", wait=100): time.sleep(300)"""


def locks():
    return {lock.key: lock for lock in inspection.snapshot(max_age=0).locks}


def causes():
    seen = verdict.look(inspection.snapshot(max_age=0), inspection.ensemble(reply_timeout=10))
    return [(incident.cause, incident.keys) for incident in seen.incidents]


def test_holds_that_are_meant_to_last_are_no_incident_however_long_others_wait(zoo, tmp_path):
    keys = {"reports": "Leader", "daemon": "Command", "device": "Lease", KEY: "Leader"}
    over = threading.Event()

    def lead(hold):
        over.wait(60)

    with contextlib.ExitStack() as stack:
        serving = stack.enter_context(Serving(zoo, session_timeout=10))
        beats = stack.enter_context(Beats(zoo, tmp_path, {"often": 0.5}, session_timeout=10))
        beats.start("first")
        command = ("zklock", "run", "daemon", "--timeout=forever", "--", "sleep", "300")
        stack.enter_context(zoo.running(MANAGE[2], *command))
        stack.enter_context(zoo.running(LEASE.format(address=serving.address)))
        BackgroundCall(lambda: zk_leader("reports").run(lead))
        stack.callback(over.set)
        stack.enter_context(zoo.configured(DEFAULTS={"warn_after": LONG}))
        stack.enter_context(zk_lock("plain"))
        for key in (*keys, "plain"):
            zoo.wait_contenders(key, 1, 60)
            stack.enter_context(zoo.hold_elsewhere(key))

        def all_are_long_held():
            seen = locks()
            held = [seen[key] for key in (*keys, "plain")]
            return all(lock.waiting > 0 and lock.holders[0].certain_duration > 2 * LONG for lock in held)

        eventually(all_are_long_held, 60, causes)
        seen = locks()
        assert {seen[key].state for key in keys} == {"lasting"}
        assert causes() == [("hung", ("plain",))]
        assert "A leader holds it until it ends." in zklock("show", "reports")
        assert "A command holds it for as long as it runs." in zklock("show", "daemon")
        listed = user_with("view_lock").get(f"{LIST}?q=").content.decode()
        assert "zklock-hung" not in listed


@pytest.mark.parametrize(
    "entry",
    [
        pytest.param(0.5, id="busy"),
        pytest.param(3.0, id="asleep for longer than between two signs of life", marks=pytest.mark.chaos),
    ],
)
def test_a_beat_whose_loop_hangs_is_an_incident_and_a_busy_one_is_none(zoo, tmp_path, entry):
    """Its session lives on, as heartbeats have a thread of their own. Nobody takes over until it is broken."""
    with Beats(zoo, tmp_path, {"often": entry}, session_timeout=10) as beats:
        (first,) = beats.start("first", BEAT_RENEW_EVERY="2")
        beats.wait_sent(1)
        eventually(lambda: locks()[KEY].holders[0].renewal_due)
        beats.wait_sent(3, since=beats.sent()[-1].at)
        assert causes() == []
        first.process.send_signal(signal.SIGUSR2)  # its main thread sleeps
        eventually(lambda: causes() == [("silent", (KEY,))], 40)
        status, printed, _ = ending("status")
        assert status == ExitCode.INCIDENT
        assert f"The leader of {KEY} gives no sign of life" in printed
        (command,) = [line for line in printed.splitlines() if "$" in line]
        filled_in = command.replace("--reason=''", "--reason=hangs")
        zklock(*shlex.split(filled_in.partition(" zklock ")[2]))
        eventually(lambda: causes() == [] and not beats.queue())
