"""More time for ZooKeeper to answer calls that do not wait: for tests, and the processes that they start."""

import os

from django.apps import AppConfig

ADDED = "TEST_REPLY_TIMEOUT"  # the variable with the seconds that a process adds to these limits when it starts


def add(seconds, set_=setattr):
    """Add seconds to the limits of answers and releases, and of the end of a session."""
    from django_zklock.core.locks import acquisition, held
    from django_zklock.core.protocol import releases
    from django_zklock.core.zk import process

    set_(process.reset, "__defaults__", (process.CLOSE_TIMEOUT + seconds,))

    set_(acquisition, "REPLY_TIMEOUT", acquisition.REPLY_TIMEOUT + seconds)
    set_(held, "RELEASE_TIMEOUT", held.RELEASE_TIMEOUT + seconds)
    set_(releases, "TIMEOUT", releases.TIMEOUT + seconds)


class ReplyTimeout(AppConfig):
    name = "support.reply_timeout"

    def ready(self):
        if seconds := float(os.environ.get(ADDED, "0")):
            add(seconds)
