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
from django_zklock.core.protocol.registry import Registry
from django_zklock.core.protocol.resumption import Claim, Nodes
from django_zklock.core.zk import process
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
            await self._restore(former.timeout, nodes)
        elif former is not None:
            self._say(f"The session of {self._state.path} is over. Starting without leases.")
        if session.session_id == present.id:  # else the file has the next one already
            await self._state.set_session(present)

    def _on_connected(self, present: FormerSession, nodes: Nodes) -> None:
        if not self._claimed.done():
            self._claimed.set_result((present, nodes))
            return
        self._state.set_session(present)
        session = process.current()
        session.post(session.attached(Registry).audit)  # if the takeover came too late for its leases

    async def _restore(self, timeout: float, nodes: Nodes) -> None:
        """Go on with the leases of the process before, and delete all other znodes of its session."""
        session, ends = process.current(), self._state.ends
        leases: list[Lease] = []
        for node in nodes.values():
            try:
                remaining = ends[node.czxid] - clock.now()
                leases.append(self._coordinator.restore(node, remaining, LEASE_SHARE * timeout))
            except (KeyError, Refusal) as error:  # a KeyError: no client knows of it
                if isinstance(error, Refusal):
                    logger.error("the lease of %s cannot go on, so it ends: %s", node.path, error)  # noqa: TRY400
                session.post(session.gateway.delete, node.path)
            if len(leases) == 1:
                await leases[0].settled  # then the session is confirmed, for the others as well
        if leases:
            await asyncio.wait([lease.settled for lease in leases])
        for token in ends.keys() - {lease.token for lease in leases}:
            self._state.forget(token)
        self._say(f"{len(leases)} leases of the process before go on. {len(nodes) - len(leases)} znodes are deleted.")
