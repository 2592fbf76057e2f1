"""Write what owners wait for into the znodes of their locks, as processes do for their owners."""

import contextlib
from collections import defaultdict
from dataclasses import replace

from kazoo.exceptions import NoNodeError

from django_zklock.core.queue.deadlock import WaitsFor
from django_zklock.core.queue.nodes import Payload


class Waits:
    def __init__(self, client):
        self._client = client
        self._paths = defaultdict(list)
        self._waits = {}

    def joined(self, owner, key, guid, path):
        """Say in the znodes of this owner what it waits for: this key, unless it is the first in that queue."""
        self._paths[owner].append(path)
        parent, _, name = path.rpartition("/")
        if name != min(self._client.get_children(parent), key=lambda child: child[-10:]):
            self._waits[owner] = WaitsFor(key, guid, 1)
        for other in self._paths[owner] if owner in self._waits else ():
            with contextlib.suppress(NoNodeError):
                payload = Payload.decode(self._client.get(other)[0])
                assert payload is not None
                self._client.set(other, replace(payload, waits_for=self._waits[owner].fields()).encode())
