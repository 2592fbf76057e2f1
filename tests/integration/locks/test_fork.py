"""A forked child holds nothing, disturbs nothing of its parent, and works with a session of its own."""

import pytest
from support.zoo import next_line

PRELUDE = """
import os, signal, sys, threading, time, traceback, warnings
from django_zklock.exceptions import LockLost, LockBusy, LockNotHeld
from django_zklock.core.locks.held import held_locks
from django_zklock.locks.hold import current_hold, held_of
from django_zklock.core.zk import process

def forked(child):
    "Run child() in a fork; return its exit code."
    pid = os.fork()
    if pid == 0:
        signal.alarm(15)  # or it hangs
        code = 70
        try:
            child()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

def sockets():
    targets = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{fd}")
        except OSError:
            continue
        if target.startswith(("socket:", "anon_inode")):
            targets.append(target)
    return targets
"""


def run(zoo, script):
    return zoo.output(PRELUDE + script)


def test_a_child_holds_nothing_of_its_parent(zoo):
    script = """
warnings.simplefilter("error")
warnings.filterwarnings("ignore", ".*use of fork", DeprecationWarning)
lock, permits = zk_lock("held", kind="write"), zk_lock("permits", limit=2)
holds = [zk_lock("dropped").acquire()]
with lock as hold, permits as permit:
    before = hold._held.grant.session_id
    def child():
        holds.clear()
        of_holds = (hold.check, hold.release, permit.check)
        for call in (*of_holds, lock.release, permits.release, current_hold):
            try:
                call()
            except LockNotHeld as error:
                assert "forked child" in str(error) or call not in of_holds, error
            else:
                raise AssertionError(f"{call} passed")
        assert hold.lost and hold.lease_remaining == 0 and permit.lost
        assert hold.wait_lost()
        assert lock.acquire(blocking=False) is None
        assert lock.locked()
        with zk_lock("other") as own:
            own.check()
            assert process.current().session_id != before
    print(forked(child), forked(child))
    hold.check()
    assert process.current().session_id == before
    assert not hold.wait_lost(1.5)
    hold.check()
    permit.check()
print(lock.locked())
"""
    assert run(zoo, script) == ["0 0", "False"]


def test_a_child_that_leaves_a_block_of_its_parent_releases_nothing(zoo):
    script = """
with zk_lock("block") as hold:
    pid = os.fork()
    if pid:
        _, status = os.waitpid(pid, 0)
        hold.check()
        others = zk_lock("block").acquire(blocking=False).token == hold.token
        print("parent", status, others, flush=True)
        held_of(hold).contender and zk_lock("block").release()
if not pid:
    sys.exit(0 if zk_lock("block").acquire(blocking=False) is None else 71)
"""
    assert run(zoo, script) == ["parent 0 True"]


@pytest.mark.parametrize(
    "ending", ["os._exit(0)", "sys.exit(0)", pytest.param("raise SystemExit(0)", marks=pytest.mark.chaos)]
)
def test_the_end_of_a_child_ends_no_session_of_its_parent(zoo, ending):
    script = f"""
hold = zk_lock("stays").acquire()
for use in (False, True):
    pid = os.fork()
    if not pid:
        if use:
            with zk_lock("child"):
                pass
        {ending}
    began = time.monotonic()
    os.waitpid(pid, 0)
    assert time.monotonic() - began < 40
    hold.check()
session = hold._held.grant.session
assert session._client._connection._socket.fileno() > 0
with zk_lock("later"):
    hold.check()
print(session.state, session.session_id == hold._held.grant.session_id, hold._held.grant.suspect_since)
zk_lock("stays").release()
"""
    assert run(zoo, script) == ["connected True None"]


def test_a_fork_while_waiting_disturbs_no_wait(zoo):
    """The waiter is the parent's thread; the child, where that thread does not exist, can queue for itself."""
    script = """
got = []
def wait():
    with zk_lock("busy", timeout=None) as hold:
        got.append(hold.token)
thread = threading.Thread(target=wait, daemon=True)
thread.start()
from django_zklock.core.protocol.registry import Registry
end = time.monotonic() + 5
while time.monotonic() < end and not (process.peek() and process.current().attached(Registry).guids):
    time.sleep(0.01)
def child():
    assert zk_lock("busy").acquire(timeout=0.3) is None
    with zk_lock("free"):
        pass
print(forked(child), got, flush=True)
sys.stdin.readline()
thread.join(30)
print(len(got))
"""
    with zoo.hold_elsewhere("busy") as foreign:  # before the process, which may be faster than this client
        process = zoo.spawn(PRELUDE + script)
        line, held = next_line(process), zoo.client.exists(foreign)
        assert line == "0 []", f"{line}, and the foreign znode is {held}: {process.communicate()}"
        zoo.wait_contenders("busy", 2, timeout=6)
    output, errors = process.communicate("\n", timeout=50)
    assert output == "1\n", errors


def test_a_fork_while_a_signal_is_sent_does_not_hang_the_child(zoo):
    """Django's signals have locks, which the thread for signals holds for moments."""
    assert run(
        zoo,
        """
from django_zklock.signals import lock_acquired

heard = []
lock_acquired.connect(lambda **kwargs: heard.append(kwargs["lock"]), weak=False)
with lock_acquired.lock:
    def child():
        with zk_lock("k"):
            pass
        process.reset()
        assert heard == ["k"]
    print(forked(child))
""",
    ) == ["0"]


def test_a_fork_before_the_first_use_is_nothing_special(zoo):
    script = """
lock = zk_lock("later", timeout=5)
assert process.peek() is None
def child():
    assert process.peek() is None
    with lock:
        pass
print([forked(child) for _ in range(3)])
with lock:
    pass
print(process.peek() is not None)
"""
    assert run(zoo, script) == ["[0, 0, 0]", "True"]


def test_a_child_keeps_no_descriptor_of_its_parents_session(zoo):
    script = """
with zk_lock("fd"):
    before = sockets()
    def child():
        left = sockets()
        assert left == [], left
        with zk_lock("own"):
            assert len(sockets()) == len(before), (sockets(), before)
    print([forked(child) for _ in range(3)], sockets() == before)
"""
    assert run(zoo, script) == ["[0, 0, 0] True"]


def test_a_fork_during_the_first_connection_disturbs_neither_process(zoo):
    script = """
import random
def child():
    with zk_lock("child", timeout=4):
        pass
def use():
    with zk_lock("parent", timeout=4):
        done.append(1)
codes, done = [], []
for _ in range(20):
    process.reset()
    thread = threading.Thread(target=use)
    thread.start()
    time.sleep(random.uniform(0, 0.006))
    codes.append(forked(child))
    thread.join()
print(set(codes), len(done))
"""
    assert run(zoo, script) == ["{0} 20"]


def test_a_child_inherits_no_lock_that_lingers(zoo):
    script = """
lock = zk_lock("lingers", linger=60, timeout=40)
def token():
    with lock as hold:
        hold.check()
        return hold.token

first = token()
def child():
    assert token() > first
    assert token() > first
assert forked(child) == 0
assert token() > first
print("done")
"""
    assert run(zoo, script) == ["done"]
