"""A fork at any instant gives a child that gets its locks, whatever the threads of the parent are about to do."""

import json

import pytest

CHILDREN = 2000
QUEUE = 1000
"""Waiters of a popular lock: to compute such a queue takes the protocol's thread milliseconds."""

PROGRAM = """
import json, os, random, select, signal, sys, threading, time
from contextlib import suppress
from django_zklock.exceptions import LockBusy, ZooKeeperUnavailable
stop = []
def lock_on(name, **options):
    while not stop:
        with suppress(LockBusy, ZooKeeperUnavailable):  # a try does not wait for a busy server
            with zk_lock(name, timeout=0, **options):
                pass

threads = [
    threading.Thread(target=lock_on, args=("popular",)),
    threading.Thread(target=lock_on, args=("private",)),
    threading.Thread(target=lock_on, args=("lingers",), kwargs={"linger": 0.01}),
]
with zk_lock("first", timeout=20):
    pass
for thread in threads:
    thread.start()
answers = {}
for number in range(int(sys.argv[1])):
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            with zk_lock(f"free-{os.getpid()}", timeout=20):
                answer = "granted"
        except BaseException as error:
            answer = f"{type(error).__name__}: {error}"
        os.write(writing, answer.encode())
        os._exit(0)
    os.close(writing)
    answer = os.read(reading, 1000).decode() if select.select([reading], [], [], 60)[0] else "hangs"
    os.close(reading)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    answers[answer] = answers.get(answer, 0) + 1
    time.sleep(random.uniform(0, 0.005))
stop.append(True)
for thread in threads:
    thread.join()
print(json.dumps(answers))
"""


@pytest.mark.timeout(1800)
def test_each_child_gets_its_lock(zoo):
    popular = f"{zoo.base}/popular"
    client = zoo.use_own_client()
    client.ensure_path(popular)
    for number in range(QUEUE):
        client.create_async(f"{popular}/_c_{number:08d}-0000-4000-8000-000000000000-lock-", b"", None, True, True)
    with zoo.running(PROGRAM, str(CHILDREN)) as process:
        printed, errors = process.communicate(timeout=1700)
    client.delete(popular, recursive=True)
    assert "Traceback" not in errors, errors
    assert json.loads(printed) == {"granted": CHILDREN}
