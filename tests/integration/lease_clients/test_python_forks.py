"""The client of the lock coordinator for Python in processes that fork."""

import pytest

HELPERS = """
import contextlib, gc, multiprocessing, os, subprocess, sys, time
from zklock_client import ClientUnusable, ZkLockClient
address = "ADDRESS"

def ended(pid):
    status = os.waitpid(pid, 0)[1]
    print(f"status {status}", flush=True) if status else None

def forked(work):
    pid = os.fork()
    if not pid:
        try:
            said = work()
            print(said, flush=True) if said is not None else None
            os._exit(0)
        finally:
            os._exit(9)
    ended(pid)

def lock(client, key="b"):
    try:
        with client.lock(key) as lease:
            return "got it" if lease.valid else "no"
    except ClientUnusable as error:
        return str(error).partition(" a client")[0]

def wait_until_kept(lease):
    until = lease._until
    while lease._until == until:
        time.sleep(0.01)
"""


@pytest.fixture
def zoo(coordinator):
    return coordinator.zoo


def output(coordinator, script):
    return coordinator.zoo.output(HELPERS.replace("ADDRESS", coordinator.address) + script)


def test_a_fork_uses_a_client_of_its_own(coordinator):
    """One that was not used before the fork, while no other client is in use."""
    script = """
print(os.getpid(), flush=True)
unused = ZkLockClient(address)
forked(lambda: lock(unused))
with ZkLockClient(address) as used:
    with used.lock("a") as lease:
        wait_until_kept(lease)
        forked(lambda: lease.valid)
        forked(lambda: lock(used))
        forked(lambda: lock(unused))
        forked(lambda: lock(ZkLockClient(address)))
        lease.check()
forked(lambda: lock(ZkLockClient(address)))
"""
    pid, *said = output(coordinator, script)
    refused = f"Process {pid} was forked while it used"
    assert said == ["got it", "False", refused, refused, refused, "got it"]


CHILDREN = {
    "that sleeps": "forked(lambda: time.sleep(0.3))",
    "that ends as a program does": """
pid = os.fork()
if not pid:
    gc.collect()
    sys.exit()
ended(pid)
""",
    "that leaves the block": "forked(lambda: blocks.close())",
    "of multiprocessing": """
process = multiprocessing.get_context("fork").Process(target=time.sleep, args=(0.3,))
process.start()
process.join()
print(process.exitcode, flush=True) if process.exitcode else None
""",
    "that becomes another program": 'subprocess.run(["true"], preexec_fn=lambda: time.sleep(0.1), check=True)',
}


@pytest.mark.parametrize("child", CHILDREN)
def test_a_child_of_a_process_that_keeps_a_lease_lives(coordinator, child):
    """And its parent keeps the lease. gRPC itself would let some of these children crash."""
    fork = "\n    ".join(CHILDREN[child].strip().splitlines())
    script = f"""
client, blocks = ZkLockClient(address), contextlib.ExitStack()
lease = blocks.enter_context(client.lock("a", term=3))
wait_until_kept(lease)
for _ in range(12):
    {fork}
wait_until_kept(lease)
blocks.close()
client.close()
print("released", flush=True)
"""
    assert output(coordinator, script) == ["released"]


def test_workers_use_the_client_that_their_server_has_made(coordinator):
    """Its name in the queue is that of the worker."""
    script = """
client = ZkLockClient(address)
def work():
    with client.lock("a") as lease:
        wait_until_kept(lease)
        print("pid", os.getpid(), flush=True)
        sys.stdin.readline()
pid = os.fork()
if not pid:
    work()
    os._exit(0)
ended(pid)
"""
    zoo = coordinator.zoo
    with zoo.running(HELPERS.replace("ADDRESS", coordinator.address) + script) as process:
        assert process.stdout is not None
        pid = process.stdout.readline().split()[1]
        assert str(zoo.payloads("a")[0].what).endswith(f":{pid}")
        assert process.communicate("\n", timeout=30) == ("", "")
        assert process.returncode == 0
