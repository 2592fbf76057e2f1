"""However a process ends, short of a kill, its session ends with it, and its locks are free at once."""

import os
import textwrap
import time

import pytest
from support.proxy import Proxy
from support.zoo import ROOM, eventually, next_line


def ended(zoo, process, *, within):
    began = time.monotonic()
    try:
        output, errors = process.communicate("\n", timeout=50)
    finally:
        process.kill()
    assert time.monotonic() - began < within + ROOM, errors
    return output, errors


def wait_printed(process, line):
    assert next_line(process) == line, process.communicate("\n", timeout=50)


@pytest.mark.parametrize(
    ("last", "code", "noise"),
    [
        ("pass", 0, ""),
        ("sys.exit(3)", 3, ""),
        ("atexit.register(zk_lock('open').acquire)", 0, ""),  # the owner has it already
        ("with zk_lock('inside'): sys.exit(4)", 4, ""),
        ("raise KeyError", 1, "KeyError"),
        ("os.kill(os.getpid(), signal.SIGINT)", -2, "KeyboardInterrupt"),
    ],
)
def test_an_orderly_end_waits_until_the_session_is_closed(zoo, last, code, noise):
    """A program that starts again at once finds its locks free. The abort of an open block does not strike the exit."""
    with Proxy(zoo.address) as proxy:
        process = zoo.spawn(
            f"""
import atexit, contextlib, os, signal, sys, threading, warnings
from django_zklock.core.locks.held import held_locks
warnings.simplefilter("error")
hold = zk_lock("end").acquire()
held_locks.forget(hold._held)  # so the exit drops it
blocks = contextlib.ExitStack()
blocks.enter_context(zk_lock("open"))
with zk_lock("lingers", linger=60):
    pass
print("held", flush=True)
sys.stdin.readline()
{last}
""",
            ZKLOCK_URL=zoo.url(proxy.address),
        )
        wait_printed(process, "held")
        assert (len(zoo.children("end")), len(zoo.children("lingers"))) == (1, 1)
        proxy.delay = 0.2
        _, errors = ended(zoo, process, within=2)
        assert zoo.contenders() == []
    assert process.returncode == code
    assert errors.count("Traceback") == (1 if noise else 0), errors
    assert noise in errors
    assert "'inside'" not in errors


@pytest.mark.parametrize(
    "connected", [True, pytest.param(False, marks=pytest.mark.chaos)], ids=["connected", "reconnecting"]
)
def test_no_thread_is_started_at_the_exit(zoo, connected):
    """Python 3.12.0 to 3.12.2 refuse that, and the documentation of all later versions forbids it."""
    with Proxy(zoo.address) as proxy:
        process = zoo.spawn(
            """
import atexit, sys, threading
hold = zk_lock("end").acquire()
hold.add_lost_callback(print)
def refuse(thread):
    raise RuntimeError(f"can't create new thread at interpreter shutdown: {thread.name}")
atexit.register(setattr, threading.Thread, "start", refuse)  # runs before the handlers that were registered earlier
print("held", flush=True)
sys.stdin.readline()
""",
            ZKLOCK_URL=zoo.url(proxy.address),
        )
        wait_printed(process, "held")
        assert len(zoo.children("end")) == 1
        if not connected:
            proxy.cut_all()
        _, errors = ended(zoo, process, within=3)
        assert process.returncode == 0
        assert "shutdown" not in errors
        assert "Traceback" not in errors
        # On a busy machine, a process that has no connection at its end does not always get one in time.
        zoo.assert_empty(0.5 if connected else 10)


@pytest.mark.parametrize("what", ["waiting", "holding"])
def test_daemon_threads_do_not_hold_up_the_exit(zoo, what):
    key = "'crowd'" if what == "waiting" else "f'crowd/{number}'"
    script = f"""
import sys, threading, time
def work(number):
    with zk_lock({key}, timeout=None):
        time.sleep(60)
for number in range(20):
    threading.Thread(target=work, args=(number,), daemon=True).start()
sys.stdin.readline()
sys.exit(0)
"""
    with zoo.hold_elsewhere("crowd"):
        process = zoo.spawn(script)
        eventually(lambda: len(zoo.contenders()) == 21, 40)
        _, errors = ended(zoo, process, within=5)
        assert process.returncode == 0
        assert "Traceback" not in errors
        assert what == "holding" or errors == ""
        assert len(zoo.contenders()) == 1


def test_threads_that_work_on_after_the_main_one_keep_their_locks(zoo):
    process = zoo.spawn(
        """
import sys, threading
held = threading.Event()
def work():
    with zk_lock("thread", timeout=None) as hold:
        held.set()
        print("held", flush=True)
        sys.stdin.readline()
        hold.check()
        with zk_lock("second"):
            print("fine", flush=True)
threading.Thread(target=work).start()
held.wait()  # Python 3.12.0 to 3.12.2 refuse the session's own threads after the end of the main one
"""
    )
    wait_printed(process, "held")
    output, errors = ended(zoo, process, within=3)
    assert output == "fine\n", errors
    assert errors == ""
    zoo.assert_empty(0.5)


def test_asyncio_run_that_is_interrupted_leaves_nothing(zoo):
    process = zoo.spawn(
        """
import asyncio, signal, sys, os
async def work():
    async with zk_lock("loop", timeout=None):
        await asyncio.sleep(60)
async def main():
    await asyncio.gather(work(), work(), work())
asyncio.run(main())
""",
        ZKLOCK_URL=zoo.url(),
    )
    zoo.wait_contenders("loop", 3)
    process.send_signal(2)
    _, errors = ended(zoo, process, within=3)
    assert "KeyboardInterrupt" in errors
    zoo.assert_empty(0)


@pytest.mark.parametrize("used", [True, False])
def test_a_lock_after_the_end_of_the_session_is_refused(zoo, used):
    """Such as in an exit handler that was registered before the import, and so runs last: nothing would release it."""
    first = """
import atexit
def last():
    from django_zklock import zk_lock
    try:
        zk_lock("late").acquire(timeout=3)
    except RuntimeError as error:
        print(error)
atexit.register(last)
"""
    script = f"""
import atexit
if {used}:
    with zk_lock("used"):
        pass
def earlier():
    zk_lock("earlier").acquire(timeout=3)
    print("acquired")
if {used}:
    atexit.register(earlier)
"""
    *acquired, error = zoo.output(script, first=first)
    assert acquired == ["acquired"] * used
    assert "after the import of django_zklock" in error
    zoo.assert_empty(0.5)


def test_a_process_that_keeps_its_session_open_leaves_its_locks_to_the_server(zoo):
    """So does a worker whose pool process still works under a lock."""
    script = "from django_zklock.core.zk import process; zk_lock('kept').acquire(); process.keep_open()"
    zoo.output(script, ZKLOCK_URL=zoo.url())
    assert len(zoo.children("kept")) == 1
    zoo.delete("kept")


ENDS = {
    "os._exit": "os._exit(0)",
    "killed": "os.kill(os.getpid(), signal.SIGKILL)",
    "faulty": "os.kill(os.getpid(), signal.SIGSEGV)",
    "terminated": "os.kill(os.getpid(), signal.SIGTERM)",
    "replaced": "os.execv(sys.executable, [sys.executable, '-c', ''])",
    "exits": "sys.exit()",
    "raises": "raise KeyError",
    "returns": "",
    "thread exits": "sys.exit()",
}
TRIES = int(os.environ.get("ZKLOCK_EXITS", "1"))  # of each kind

WITH = """
with {lock}:
    pass
{end}
"""
IN_COROUTINE = """
import asyncio
async def use():
    async with {lock}:
        pass
    {end}
asyncio.run(use())
"""
UNTIL_COMMIT = """
from django.db import transaction
with transaction.atomic():
    with {lock}:
        pass
{end}
"""
REENTERED = """
with {lock}:
    with {lock}:
        pass
{end}
"""
IN_TURN = """
with zk_lock("child", linger=60):
    pass
with zk_lock("child", linger=0):
    pass
{end}
"""
LOCK, SEVERAL = "zk_lock('child')", "zk_locks('child', 'b', 'c', 'd', 'e')"
BLOCKS = {
    "block": (WITH, LOCK),
    "coroutine": (IN_COROUTINE, LOCK),
    "several": (WITH, SEVERAL),
    "several in a coroutine": (IN_COROUTINE, SEVERAL),
    "until COMMIT": (UNTIL_COMMIT, "zk_lock('child', release_on='commit')"),
    "reentered": (REENTERED, LOCK),
    "semaphore": (WITH, "zk_semaphore('child', 1)"),
    "writer": (WITH, "zk_lock('child', kind='write')"),
    "reader": (WITH, "zk_lock('child', kind='read')"),
    "lingered before": (IN_TURN, LOCK),
}

CASES = {
    "os._exit": [("os._exit", block) for block in BLOCKS],
    "killed": [("killed", block) for block in BLOCKS],
    "others": [(how, "block") for how in ENDS if how not in ("os._exit", "killed")],
}


@pytest.mark.parametrize("cases", CASES.values(), ids=CASES)
def test_a_release_arrives_although_the_process_ends_just_after_the_block(zoo, cases):
    """The end of a block waits for no confirmation. But its release is in the socket by then."""
    script = """
import contextlib, multiprocessing, os, signal, sys, threading, time
from django_zklock import zk_locks, zk_semaphore
def quietly(call, in_thread):
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    if not in_thread:
        return call()
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    os._exit(0)
"""
    for how, block in cases:
        source, lock = BLOCKS[block]
        script += f"""
def work():
{textwrap.indent(source.format(lock=lock, end=ENDS[how]), "    ")}
longest = 0
for _ in range({TRIES}):
    child = multiprocessing.get_context("fork").Process(target=quietly, args=(work, {how == "thread exits"}))
    child.start()
    child.join(30)
    began = time.monotonic()
    with {"zk_lock('child', kind='write')" if block in ("reader", "writer") else lock}:
        longest = max(longest, time.monotonic() - began)
print(longest)
"""
    waits = zoo.output(script, timeout=100 + TRIES * len(cases), ZKLOCK_URL=zoo.url())
    late = {case: wait for case, wait in zip(cases, map(float, waits), strict=True) if wait > 10}
    assert not late


def test_a_process_that_an_abort_ends_frees_its_lock(zoo):
    """Work that is stopped by a cut often ends its process there and then; the session is ended on a new connection."""
    with Proxy(zoo.address) as proxy:
        process = zoo.spawn(
            """
import threading
with zk_lock("aborted", grace=0):
    print("held", flush=True)
    threading.Event().wait(30)
""",
            ZKLOCK_URL=zoo.url(proxy.address),
        )
        wait_printed(process, "held")
        proxy.cut_all()
        _, errors = ended(zoo, process, within=3)
        assert "LockLost" in errors
        zoo.assert_empty(2)
