"""A client of kazoo's without a session."""

from django_zklock.core.zk.client import Client
from django_zklock.core.zk.options import SessionOptions
from django_zklock.core.zk.outage import Outage


def bare_client(host=("127.0.0.1", 1), **options):
    """Return a client that tells nobody of its connection, and was not started."""
    client = Client(SessionOptions(hosts=(host,), **options))
    client.outage = Outage(client.options.hosts, client.options.connect_timeout)
    client.on_connected = client.on_broken = client.on_pinged = client.on_ended = lambda *about: None
    client.lease_lasts, client.is_wanted = bool, lambda: True
    return client
