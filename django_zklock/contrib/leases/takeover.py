"""Go on with the session and the leases of the coordinator that used the same state file before."""

from __future__ import annotations

import asyncio
import math
import os
import secrets
import signal
from collections.abc import Callable
from dataclasses import replace

from django_zklock.contrib.leases.coordinator import Coordinator
from django_zklock.contrib.leases.lease import Lease
from django_zklock.contrib.leases.refusal import Refusal
from django_zklock.contrib.leases.state import StateFile
from django_zklock.core import clock
from django_zklock.core.log import Logger
from django_zklock.core.protocol.resumption import Claim, Nodes
from django_zklock.core.zk import process
from django_zklock.core.zk.gateway import Node
from django_zklock.core.zk.lease import LEASE_SHARE
from django_zklock.core.zk.options import FormerSession, SessionOptions

logger = Logger("django_zklock.leases")


class Takeover:
    """Takes over the session of the process before, and writes each session of this one into the state file."""

    def __init__(self, state: StateFile, coordinator: Coordinator, say: Callable[[str], object]) -> None:
        self._state = state
        self._coordinator = coordinator
        self._say = say
        self._claimed: asyncio.Future[tuple[FormerSession, Nodes]] = asyncio.get_running_loop().create_future()

    async def run(self, new_options: Callable[[], SessionOptions]) -> None:
        """Begin the session. Wait until the leases of the one before go on here, or are over in any case."""
        former = self._state.former
        process.configure(lambda: replace(new_options(), former=former))
        session, post = process.current(), asyncio.get_running_loop().call_soon_threadsafe
        session.wanted_until = math.inf
        Claim(
            session,
            secrets.token_bytes(8),
            lambda present, nodes: post(self._on_connected, present, nodes),
            lambda: os.kill(os.getpid(), signal.SIGTERM),
        ).start()
        timeout = session.timeout if former is None else former.timeout
        try:
            present, nodes = await asyncio.wait_for(self._claimed, timeout)
        except asyncio.TimeoutError:
            self._say(f"{session.explain(timeout)} Starting without leases.")
            return
        if former is not None and present.id == former.id:
            await self._restore(former, nodes)
        elif former is not None:
            self._say(f"The session of {self._state.path} is over. Starting without leases.")
        if session.session_id == present.id:  # else the file has the next one already
            await self._state.set_session(present)

    def _on_connected(self, present: FormerSession, nodes: Nodes) -> None:
        if self._claimed.done():
            self._state.set_session(present)
        else:
            self._claimed.set_result((present, nodes))

    async def _restore(self, former: FormerSession, nodes: Nodes) -> None:
        """Go on with the leases of the process before, and delete all other znodes of its session."""
        now, session = clock.now(), process.current()
        leases: list[Lease] = []
        for node in nodes.values():
            lease = self._lease(node, former, now) if node.czxid in self._state.ends else None
            if lease is None:
                session.post(session.gateway.delete, node.path)
                continue
            leases.append(lease)
            if len(leases) == 1:
                await lease.settled  # then the session is confirmed, for the others as well
        if leases:
            await asyncio.wait([lease.settled for lease in leases])
        for token in self._state.ends.keys() - {lease.token for lease in leases}:
            self._state.forget(token)
        self._say(f"{len(leases)} leases of the process before go on. {len(nodes) - len(leases)} znodes are deleted.")

    def _lease(self, node: Node, former: FormerSession, now: float) -> Lease | None:
        end = self._state.ends[node.czxid]

        def ends_in(term: float) -> float:
            # No client was told more than this share of the session timeout, so it comes again before that is over.
            until = now + min(term, LEASE_SHARE * former.timeout) if math.isnan(end) else end
            return until - clock.now()

        try:
            return self._coordinator.restore(node, ends_in)
        except Refusal as refusal:
            logger.error("the lease of %s ends, as the settings forbid it: %s", node.path, refusal)  # noqa: TRY400
            return None
