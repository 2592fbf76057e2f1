"""A session that moves between servers with other bounds of the session timeout has a lease by the smallest of them."""

import contextlib

import pytest
from support.faults import connected
from support.proxy import Proxy
from support.zoo import eventually

from django_zklock import zk_lock
from django_zklock.core import clock
from django_zklock.core.zk.lease import LEASE_SHARE

LONG, SHORT = 20.0, 2.0  # seconds


class Route:
    """Servers with other bounds, of which a session can reach one at a time."""

    def __init__(self, proxies):
        self.proxies = proxies

    def move_to(self, number):
        """Let the session reach this server alone, and wait until a quorum has confirmed it there."""
        for proxy in self.proxies:
            proxy.go_away()
        self.proxies[number].refuse = False
        session = connected()
        eventually(lambda: session.server == self.proxies[number].address and not session.suspect)
        return session

    def cut(self):
        for proxy in self.proxies:
            proxy.go_away()


@contextlib.contextmanager
def route(zoo, *bounds):
    with contextlib.ExitStack() as stack:
        proxies = [stack.enter_context(Proxy(zoo.address)) for _ in bounds]
        for proxy, its_bounds in zip(proxies, bounds, strict=True):
            proxy.bounds = its_bounds
            proxy.refuse = True
        proxies[0].refuse = False
        stack.enter_context(zoo.configured(",".join(proxy.address for proxy in proxies), LONG))
        yield Route(proxies)
        for proxy in proxies:
            proxy.heal()
        connected()  # so that the session can be closed


def up_to(*longest):
    return [(0.0, most) for most in longest]


def wait_for_leases(session, count):
    """Wait until the lease was extended so many times."""
    ends = []

    def is_enough():
        ends.append(session.leased_until)
        return len(set(ends)) > count

    eventually(is_enough)


@pytest.mark.parametrize(
    "longest",
    [(LONG, SHORT), (LONG, 6.0, SHORT), (SHORT, LONG), (LONG, SHORT, LONG), (6.0, LONG, SHORT)],
    ids=["falls", "falls twice", "rises", "falls and rises", "rises and falls"],
)
def test_a_lease_is_over_before_the_servers_end_the_session(zoo, longest):
    with route(zoo, *up_to(*longest)) as way, zk_lock("a", abort_on="never") as hold:
        session = connected()
        for number in range(1, len(longest)):
            way.move_to(number)
            assert session.timeout == min(longest[: number + 1])
            assert hold.lease_remaining <= LEASE_SHARE * session.timeout
        way.cut()
        eventually(lambda: not zoo.children("a"), SHORT + 10)
        assert session.leased_until < clock.now()


def test_a_free_lock_is_granted_after_the_timeout_fell(zoo):
    """It would have to wait for the end of the longer lease if that still counted."""
    with route(zoo, *up_to(LONG, SHORT)) as way, zk_lock("a", abort_on="never"):
        session = way.move_to(1)
        with zk_lock("b", timeout=LEASE_SHARE * LONG / 2):
            assert session.timeout == SHORT


def test_holders_keep_their_locks_while_the_timeout_falls(zoo):
    """The heartbeat has the pace of the shorter timeout at once. With the old one, each lease would end before it."""
    with route(zoo, *up_to(LONG, SHORT)) as way, zk_lock("a", abort_on="lost") as hold:
        session = way.move_to(1)
        wait_for_leases(session, 5)
        assert hold.state == "held"


def test_the_first_lock_after_the_timeout_fell_is_kept(zoo):
    """Nobody held one meanwhile, so no heartbeat was sent. The next one has the pace of the shorter timeout."""
    with route(zoo, *up_to(LONG, SHORT)) as way:
        with zk_lock("a"):
            connected()
        for proxy in way.proxies:
            proxy.go_away()
        way.proxies[1].refuse = False
        session = connected()
        eventually(lambda: session.server == way.proxies[1].address)
        with zk_lock("b", abort_on="lost") as hold:
            wait_for_leases(session, 5)
            assert hold.state == "held"


def test_pool_processes_are_told_of_the_earlier_end(zoo):
    with route(zoo, *up_to(LONG, SHORT)) as way, zk_lock("a", abort_on="never"):
        session = connected()
        before, ends = session.leased_until, []
        session.lease.on_changed["test"] = lambda: ends.append(session.leased_until)
        way.move_to(1)
        assert ends[0] < before


def test_a_server_may_grant_more_than_the_session_has_had(zoo):
    """Its least timeout is higher. The lease and the pings keep the pace of the smallest one."""
    with route(zoo, (0.0, SHORT), (5 * SHORT, LONG)) as way, zk_lock("a", abort_on="lost") as hold:
        session = way.move_to(1)
        wait_for_leases(session, 8)
        with zk_lock("b"):
            assert session.timeout == SHORT
        assert hold.state == "held"


def test_a_new_session_may_have_the_longer_timeout_again(zoo):
    with route(zoo, *up_to(SHORT, LONG)) as way, zk_lock("a", abort_on="never") as first:
        session = connected()
        session_id = session.session_id
        way.cut()
        eventually(lambda: not zoo.children("a"), SHORT + 10)
        way.proxies[1].refuse = False
        eventually(lambda: connected().session_id != session_id)
        assert session.timeout == LONG
        assert first.state == "lost"


def test_the_server_that_granted_less_is_named_in_one_warning(zoo, caplog):
    with route(zoo, *up_to(LONG, SHORT, LONG)) as way, zk_lock("a", abort_on="never"):
        for number in (1, 2, 1):
            way.move_to(number)
        warnings = [text for text in caplog.messages if "session timeout" in text]
        assert len(warnings) == 1
        assert f"asked the server {way.proxies[1].address} for a session timeout of 20 s and got 2 s" in warnings[0]
