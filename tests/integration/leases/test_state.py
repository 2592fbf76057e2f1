"""`manage.py zklock serve --state FILE`: the leases of a coordinator go on in the next process."""

import contextlib
import json
import shutil
import time

import grpc
import pytest
from kazoo.client import KazooClient
from support.proxy import GET_DATA, MULTI, SET_DATA, Proxy
from support.serving import Serving
from support.zoo import eventually

from django_zklock.contrib.leases.v1 import lock_coordinator_pb2 as pb
from zklock_client.v1 import lock_coordinator_pb2_grpc as pb_grpc

SESSION = 20.0
GET_EPHEMERALS = 103
HELD, OVER = pb.LeaseState.STATE_HELD, pb.LeaseState.STATE_OVER


@pytest.fixture
def state(tmp_path):
    return tmp_path / "state"


@pytest.fixture
def serving(zoo, state):
    with Serving(zoo, "--state", str(state), session_timeout=SESSION) as serving:
        yield serving
    end_session(zoo, state)


@pytest.fixture
def proxy(zoo):
    with Proxy(zoo.address) as proxy:
        yield proxy


@contextlib.contextmanager
def stub_of(serving):
    with grpc.insecure_channel(serving.address) as channel:
        yield pb_grpc.LockCoordinatorStub(channel)


def acquire(serving, key="a", term=60, **more):
    wanted = pb.RecordLockRequest(resource_path=key, client_id="x", session_timeout_ms=round(term * 1000), **more)
    with stub_of(serving) as stub:
        return stub.RecordLock(wanted, timeout=20, wait_for_ready=True)


def keep(serving, lease):
    with stub_of(serving) as stub:
        return next(stub.KeepAlive(iter([pb.KeepAliveRequest(lease_id=lease.lease_id)]), wait_for_ready=True))


def release(serving, lease):
    with stub_of(serving) as stub:
        return bool(stub.ReleaseLock(pb.ReleaseLockRequest(lease_id=lease.lease_id), timeout=20).released)


def kill(serving):
    serving.kill()


def stop(serving):
    assert serving.drain() == 0


def end_session(zoo, state):
    """End the session in a state file, as ZooKeeper does in time."""
    header = json.loads(state.read_bytes())
    client = KazooClient(zoo.address, client_id=(header["session"], bytes.fromhex(header["password"])))
    client.start()
    client.stop()
    client.close()


@pytest.mark.parametrize("end", [stop, kill])
def test_each_kind_of_lease_goes_on_in_the_next_process(zoo, serving, end):
    """Calls that wait are refused, and leave the queue."""
    leases = [acquire(serving), acquire(serving, "writes/Jürgen", kind=pb.KIND_WRITE)]
    leases += [acquire(serving, "reads", kind=pb.KIND_READ) for _ in range(2)]
    leases += [acquire(serving, "permits", kind=pb.KIND_SEMAPHORE, limit=2) for _ in range(2)]
    with stub_of(serving) as stub:
        waiting = stub.RecordLock.future(pb.RecordLockRequest(resource_path="a", client_id="y", wait_blocking=True))
        zoo.wait_contenders("a", 2)
        end(serving)
        assert waiting.exception(20).code() is grpc.StatusCode.UNAVAILABLE
    serving.start()
    zoo.wait_contenders("a", 1)
    kept = [keep(serving, lease) for lease in leases]
    assert [state.fencing_token for state in kept] == [lease.fencing_token for lease in leases]
    assert all(state.state == HELD and state.lease_duration_ms > 1000 for state in kept)
    assert not acquire(serving, "reads", kind=pb.KIND_WRITE).acquired
    assert not acquire(serving, "permits", kind=pb.KIND_SEMAPHORE, limit=2).acquired
    assert all(release(serving, lease) for lease in leases)


def test_a_new_process_waits_for_the_one_that_uses_the_file(zoo, serving, state):
    lease = acquire(serving)
    with contextlib.ExitStack() as stack:
        second = Serving(zoo, "--state", str(state), session_timeout=SESSION)
        second.launch()
        stack.push(second.__exit__)
        eventually(lambda: "Another process uses" in second.log(), 60)
        assert keep(serving, lease).state == HELD
        serving.kill()
        second.await_serving()
        assert keep(second, lease).state == HELD


def test_a_paused_process_whose_session_is_taken_over_ends_and_touches_no_lock(zoo, serving, state):
    """By a copy of its file."""
    lease = acquire(serving)
    copy = state.with_name("copy")
    shutil.copy(state, copy)
    copy.chmod(0o600)
    with Serving(zoo, "--state", str(copy), session_timeout=SESSION) as second:
        with serving.paused():
            assert release(second, lease)
            other = acquire(second)
            assert other.fencing_token > lease.fencing_token
        assert serving.process.wait(20) == 0  # so that no supervisor lets it take the session back
        assert "has taken over" in serving.log()
        assert keep(second, other).state == HELD
        assert len(zoo.children("a")) == 1


def test_without_its_session_the_next_process_starts_without_leases(zoo, serving, state):
    lease = acquire(serving)
    serving.kill()
    end_session(zoo, state)
    serving.start()
    assert f"The session of {state} is over. Starting without leases." in serving.log()
    assert keep(serving, lease).state == OVER
    other = acquire(serving)
    serving.kill()
    serving.start()
    assert keep(serving, other).state == HELD


def test_without_zookeeper_the_next_process_waits_until_all_promises_are_over(zoo, state, proxy):
    """Then it serves, and says that no lock can be given now."""
    with Serving(zoo, "--state", str(state), hosts=proxy.address, session_timeout=4) as serving:
        lease = acquire(serving)
        serving.kill()
        proxy.refuse = True
        began = time.monotonic()
        serving.start()
        assert time.monotonic() - began > 3.9
        assert "within 4.0 s: " in serving.log()
        assert "Starting without leases." in serving.log()
        assert keep(serving, lease).state == OVER
        proxy.refuse = False
        assert acquire(serving, "b", wait_blocking=True).acquired
    end_session(zoo, state)


def test_a_lease_survives_processes_that_are_killed_while_they_take_over(zoo, state, proxy):
    with Serving(zoo, "--state", str(state), hosts=proxy.address, session_timeout=SESSION) as serving:
        lease = acquire(serving)
        for request in (GET_DATA, SET_DATA, MULTI, GET_EPHEMERALS):
            serving.kill()
            proxy.reset()
            proxy.delay_op(request, 60)
            serving.launch()
            proxy.wait_for(lambda request=request: proxy.counts[request], 60)
            proxy.delay_op(request, 0)
        serving.kill()
        serving.start()
        assert keep(serving, lease).fencing_token == lease.fencing_token
    end_session(zoo, state)
