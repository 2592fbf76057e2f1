"""A process that has no room for a thread, a descriptor or memory at one moment gets its next lock all the same."""

import json

import pytest

PROGRAM = """
import _thread, ctypes, errno, json, logging, os, queue, select, socket, sys, threading, time, traceback

STARTS = {"start_new_thread", "_start_new_thread", "_start_joinable_thread"}
CALLS = {"open", "mmap.__new__", "pipe", "socketpair", "poll", "get", "socket.connect", "socket.getaddrinfo"}
CALLS |= {"socket.__new__"}

def audited(call, name):
    "Return the call, which Python does not audit by itself."
    def run(*arguments, **options):
        sys.audit(name)
        return call(*arguments, **options)
    return run

class Queue(queue.SimpleQueue):
    get = audited(queue.SimpleQueue.get, "get")

patched = {_thread: STARTS, threading: STARTS, os: ["pipe"], socket: ["socketpair"], select: ["poll"]}
for module, names in patched.items():
    for name in names:
        if hasattr(module, name):
            setattr(module, name, audited(getattr(module, name), name))
queue.SimpleQueue = Queue

from django_zklock import signals
from django_zklock.core.zk import process
from django_zklock.exceptions import LockLost, ZooKeeperUnavailable

kind, phase = sys.argv[1:]
signalled = threading.Event()
def on_acquired(lock, **kwargs):
    if lock != "first":
        signalled.set()
signals.lock_acquired.connect(on_acquired)

def fail(number):
    "Make one such call fail, the one with this number from now on; return a list that gets all of them."
    seen = []
    def hook(event, arguments):
        if event in CALLS | STARTS:
            seen.append(event)
            if len(seen) == number:
                if kind == "memory":
                    raise MemoryError
                if event in STARTS:
                    raise RuntimeError("can't start new thread")
                raise OSError(errno.EMFILE, "Too many open files")
    sys.addaudithook(hook)
    return seen

def lock_later(name):
    "Return the seconds until the lock was granted."
    began = time.monotonic()
    while time.monotonic() < began + 40:
        try:
            with zk_lock(name, timeout=2):
                return time.monotonic() - began
        except (LockLost, ZooKeeperUnavailable):  # of the fault itself
            time.sleep(0.05)
    return 99.0

def trial(number):
    "Return all such calls of an ordinary start, and how long the lock, and its signal, took."
    if phase == "replacement":
        with zk_lock("first", timeout=20):
            client = process.current()._client
    seen = fail(number)
    if phase == "replacement":  # kazoo's thread dies
        thread = client._connection._connection_routine
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(SystemExit))
        client.drop_connection()
        thread.join(10)
    took = lock_later(f"lock-{number}")
    signalled.wait(20)
    process.reset()
    return {"calls": seen, "took": took, "signalled": signalled.is_set()}

def in_child(number):
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        logging.disable()
        try:
            result = trial(number)
        except BaseException:
            result = {"took": -1, "error": traceback.format_exc()}
        os.write(writing, json.dumps(result).encode())
        os._exit(0)
    os.close(writing)
    with open(reading, "rb") as answer:
        result = json.loads(answer.read())
    os.waitpid(pid, 0)
    return result

results = [in_child(0)]
for number in range(len(results[0]["calls"])):
    results.append(in_child(number + 1))
print(json.dumps(results))
"""


@pytest.mark.parametrize("phase", ["start", pytest.param("replacement", marks=pytest.mark.chaos)])
@pytest.mark.parametrize("kind", ["room", pytest.param("memory", marks=pytest.mark.chaos)])
def test_each_call_of_a_start_may_fail_once(zoo, kind, phase):
    process = zoo.spawn(PROGRAM, kind, phase)  # it patches modules
    printed, errors = process.communicate(timeout=300)
    ordinary, *failed = json.loads(printed)
    assert {"socket.__new__", "socket.connect"} < set(ordinary["calls"]), errors
    assert len(ordinary["calls"]) >= 5, ordinary
    late = [result for result in failed if not 0 <= result["took"] < 10 or not result["signalled"]]
    assert late == []


DESCRIPTORS = """
import resource, time
from django_zklock.exceptions import ZooKeeperUnavailable
from django_zklock.core.zk.session import Session
with_all = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (100, with_all[1]))
files = []
try:
    while True:
        files.append(open("/dev/null"))
except OSError:
    pass
try:
    zk_lock("a").acquire(timeout=1)
except ZooKeeperUnavailable as error:
    print(str(error).lower())
files.clear()
with zk_lock("a", timeout=20):
    print("granted")
"""


def test_a_process_without_descriptors_says_so_and_connects_later(zoo):
    reason, later = zoo.output(DESCRIPTORS)
    assert "too many open files" in reason
    assert later == "granted"
