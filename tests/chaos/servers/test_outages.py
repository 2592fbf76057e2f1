"""After an outage of any length and kind, each caller gets a free lock."""

import itertools

import pytest
from support.ensemble import Ensemble
from support.proxy import CONNECT
from support.work import sleep_in_pieces

pytestmark = pytest.mark.timeout(120)

TIMEOUT = 4.0  # seconds, of the sessions
SOON = 5.0  # seconds after the end of an outage; promised


@pytest.fixture
def ensemble():
    with Ensemble(nodes=3, tick=0.5) as ensemble:
        yield ensemble


def refuse(proxies):
    for proxy in proxies:
        proxy.go_away()


def close(proxies):
    """As a balancer without a server does."""
    for proxy in proxies:
        for _ in range(1000):
            proxy.kill_before_op(CONNECT)
        proxy.cut_all()


def hang(proxies):
    for proxy in proxies:
        proxy.hang = True


@pytest.mark.parametrize("timeouts", [1, 2, 3, 4])
@pytest.mark.parametrize("break_", [refuse, close, hang])
def test_a_free_lock_is_granted_soon_after_an_outage(pool, proxies, break_, timeouts):
    """A holder of before has lost it, or still has it and releases it; nobody is refused."""
    pool.connect_timeout = SOON  # the default: a caller waits so long for a connection
    hosts = ",".join(proxy.address for proxy in proxies)
    holder = pool.start_one("holder", hosts=hosts, session_timeout=TIMEOUT)
    caller = pool.start_one("caller", hosts=hosts, session_timeout=TIMEOUT)
    holder.must_acquire("k")
    caller.use("free")
    working = holder.work("k")
    break_(proxies)
    sleep_in_pieces((timeouts + 0.5) * TIMEOUT)
    for proxy in proxies:
        proxy.heal()
    holder.stop_work("k")
    working.result()
    holder.release("k")
    for key, worker in itertools.product(("free", "k"), (caller, holder)):
        worker.must_acquire(key, SOON, owner="later")
        worker.release(key, owner="later").result()


def test_a_free_lock_is_granted_soon_after_all_servers_were_down(pool, ensemble):
    """The next leader gives each session a whole timeout again, also one whose process would take a new one."""
    holder, caller = (pool.start_one(name, session_timeout=TIMEOUT) for name in ("holder", "caller"))
    holder.must_acquire("k")
    working = holder.work("k")
    caller.use("free")
    for server in ensemble.servers:
        server.stop()
    assert working.result()["lost"]
    holder.release("k").result()
    sleep_in_pieces(3 * TIMEOUT)
    for server in ensemble.servers:
        server.start()
    for server in ensemble.servers:
        server.wait_ready()
    caller.must_acquire("k", SOON)
