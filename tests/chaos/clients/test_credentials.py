"""Servers that expect credentials first cost no lock."""

import re
import threading
import time
from functools import partial

import pytest
from support.chaos.servers import serving
from support.ensemble import Ensemble
from support.faults import BackgroundCall, results
from support.signalled import received
from support.work import assert_refused
from support.zoo import Zoo, eventually

from django_zklock import zk_lock
from django_zklock.exceptions import LockLost, LockTimeout, ZooKeeperUnavailable
from django_zklock.signals import connection_state_changed


@pytest.fixture
def strict():
    """Three servers that close the connection of a client that sends a request before its credentials."""
    properties = {
        "enforce.auth.enabled": "true",
        "enforce.auth.schemes": "digest",
        # ZooKeeper 3.8's followers, restarted under load, may fail to join a new leader, which waits for them in vain
        # ("NEWLEADER ACK ... is from a different epoch") for as long as this says, in ticks; then there is another one.
        "initLimit": "12",
    }
    with Ensemble(nodes=3, properties=properties) as ensemble:
        yield ensemble


@pytest.mark.timeout(400)
def test_a_client_moves_to_another_server_with_its_credentials(strict):
    zoo = Zoo(strict.hosts, strict)
    zoo.client.add_auth("digest", "shop:secret")
    errors = []
    turns = [0] * 4
    reconnects = []
    stop = threading.Event()

    def use_locks(number):
        while not stop.is_set():
            try:
                with zk_lock(f"shelf/{number % 2}", timeout=20):
                    turns[number] += 1
            except Exception as error:
                errors.append(error)
            time.sleep(0.001)

    def note(state, **_):
        reconnects.extend([state] if state == "connected" else [])

    def go_on():
        before = list(turns)
        eventually(lambda: all(now > then + 5 for now, then in zip(turns, before, strict=True)), 60, "no turns")

    with zoo.configured():
        assert_refused(zk_lock("shelf/0", timeout=5), ZooKeeperUnavailable, "requires authentication")
    with received(connection_state_changed, note), zoo.configured(AUTH="shop:secret", ACL="creator"):
        users = [BackgroundCall(partial(use_locks, number)) for number in range(4)]
        try:
            for server in strict.servers * 2:
                server.kill()
                go_on()
                server.start()
                server.wait_ready(60)
                go_on()
        finally:
            stop.set()
            results(users)
        assert len(reconnects) > 2, "no client connected to another server"
        assert not any(
            re.search("auth|permi", repr(cause), re.IGNORECASE) for error in errors for cause in chain_of(error)
        )
        assert all(isinstance(error, (LockTimeout, LockLost, ZooKeeperUnavailable)) for error in errors), errors
        serving(zoo)
        zoo.assert_empty()
    zoo.close()


def chain_of(error):
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
