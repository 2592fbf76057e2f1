"""A child of a server that forks in C, of which Python does not learn, works as any forked child."""

PRELUDE = """
import ctypes, logging, os, signal, sys, threading, time, traceback
from django_zklock import signals
from django_zklock.core.zk import process
from django_zklock.exceptions import LockLost, LockNotHeld
from django_zklock.locks.hold import current_hold

lines = []
class Handler(logging.Handler):
    def emit(self, record):
        lines.append((os.getpid(), record.getMessage()))
logging.getLogger("django_zklock").addHandler(Handler())

def sleepers():
    "Start threads whose memory the fork gives to the threads of the child."
    for _ in range(4):
        threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()

def forked(child):
    "Run child() in a fork of which Python does not learn; return its exit code."
    time.sleep(0.5)  # a thread that waits for the GIL at such a fork may break the GIL of the child
    pid = ctypes.PyDLL(None).fork()
    if pid == 0:
        signal.alarm(60)  # or it hangs
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

def texts(word):
    return [text for pid, text in lines if pid == os.getpid() and word in text]

def in_thread(call):
    ends = []
    def run():
        try:
            ends.append(call())
        except BaseException as error:
            ends.append(error)
    thread = threading.Thread(target=run)
    thread.start()
    thread.join(30)
    return ends[0]

def lose(seconds):
    "Work under a lock that is lost meanwhile; return how long that took."
    began = time.monotonic()
    try:
        with zk_lock(f"lost-{os.getpid()}", timeout=20, grace=0):
            threading.Timer(0.1, lambda: process.current()._client.drop_connection()).start()
            while time.monotonic() < began + seconds:
                time.sleep(0.01)
    except LockLost:
        return time.monotonic() - began
    raise AssertionError("not lost")
"""


def run(zoo, script):
    with zoo.running(PRELUDE + script) as process:
        printed, errors = process.communicate(timeout=100)
    assert process.returncode == 0, errors
    assert "Traceback" not in errors, errors
    return printed.splitlines()


def test_a_child_holds_nothing_of_its_parent_and_works_with_a_session_of_its_own(zoo):
    script = """
lock = zk_lock("held")
heard = []
signals.lock_acquired.connect(lambda lock, **more: heard.append(lock), weak=False)
sleepers()
with lock as hold:
    before = process.current().session_id
    def child():
        for call in (hold.check, lock.release, current_hold):
            try:
                call()
            except LockNotHeld:
                continue
            raise AssertionError(call)
        assert not lock.owned() and lock.locked()
        assert lock.acquire(blocking=False) is None
        heard.clear()
        with zk_lock("other", timeout=20) as own:
            own.check()
            assert process.current().session_id != before
        began = time.monotonic()
        process.end()
        assert time.monotonic() - began < 15
        assert heard == ["other"]
        assert len(texts("lazy-apps = true")) == 1
    print(forked(child), forked(child))
    hold.check()
    print(process.current().session_id == before, texts("lazy-apps"))
"""
    assert run(zoo, script) == ["0 0", "True []"]


def test_a_loss_of_a_child_is_logged_and_crashes_nothing(zoo):
    script = """
with zk_lock("first", timeout=20):
    pass
sleepers()
def child():
    for _ in range(3):
        assert in_thread(lambda: lose(0.5)) >= 0.5  # it cannot be aborted
    assert lose(20) < 15  # the main thread can
    process.end()
    assert len(texts("' is lost")) == 4, lines
print(forked(child))
"""
    assert run(zoo, script) == ["0"]


def test_a_child_without_threads_of_its_parent_aborts_as_ever(zoo):
    script = """
def child():
    assert in_thread(lambda: lose(20)) < 15
    assert texts("lazy-apps") == []
print(forked(child))
"""
    assert run(zoo, script) == ["0"]


def test_a_child_logs_a_release_request_without_a_stack(zoo):
    script = """
from django_zklock.operations import request_release
with zk_lock("first", timeout=20):
    pass
sleepers()
def child():
    with zk_lock("shown", timeout=20) as hold:
        request_release("shown", "why", by="ops")
        assert hold.wait_release_requested(20)
        while not any("is asked to release by ops: why" in text for text in texts("shown")):
            time.sleep(0.01)
print(forked(child))
"""
    assert run(zoo, script) == ["0"]


def test_a_child_that_never_locks_ends_at_once(zoo):
    script = """
with zk_lock("first", timeout=20):
    pass
def child():
    began = time.monotonic()
    process.end()
    assert time.monotonic() - began < 0.9
print(forked(child))
"""
    assert run(zoo, script) == ["0"]


def test_greenlets_of_the_parent_do_nothing_in_the_child(zoo):
    """They outlive the fork, and would use the parent's connection."""
    script = (
        PRELUDE
        + """
import gevent
with zk_lock("held", timeout=20) as hold:
    before = process.current().session_id
    pid = ctypes.PyDLL(None).fork()
    if pid == 0:
        signal.alarm(60)  # or it hangs
        gevent.reinit()
        time.sleep(2)  # the heartbeats of the parent's greenlets would be due
        with zk_lock("own", timeout=20):
            os._exit(0 if process.current().session_id != before else 70)
    while not (ended := os.waitpid(pid, os.WNOHANG))[0]:
        time.sleep(0.05)
    hold.check()
    print(ended[1], process.current().session_id == before, texts("unclear"))
"""
    )
    first = "from gevent import monkey; monkey.patch_all()"
    with zoo.running(script, first=first) as process:
        printed, errors = process.communicate(timeout=100)
    assert printed.splitlines() == ["0 True []"], errors
