"""Go on with the session and the leases of the coordinator that used the same state file before."""

from __future__ import annotations

import asyncio
import math
import os
import signal
from collections.abc import Callable

from django_zklock.contrib.leases.coordinator import Coordinator
from django_zklock.contrib.leases.lease import Lease
from django_zklock.contrib.leases.refusal import Refusal
from django_zklock.contrib.leases.resumption import Claim, Claimed
from django_zklock.contrib.leases.state import StateFile
from django_zklock.core.log import Logger
from django_zklock.core.protocol.registry import Registry
from django_zklock.core.zk import process
from django_zklock.core.zk.gateway import Node
from django_zklock.core.zk.lease import LEASE_SHARE

logger = Logger("django_zklock.leases")


class Takeover:
    """Takes over the session of the process before, and writes each session of this one into the state file."""

    def __init__(self, state: StateFile, coordinator: Coordinator, say: Callable[[str], object]) -> None:
        self._state = state
        self._coordinator = coordinator
        self._say = say
        self._loop = asyncio.get_running_loop()
        self._claimed: asyncio.Future[Claimed] = self._loop.create_future()

    async def run(self) -> None:
        """Begin the session. Wait until the leases of the one before go on here, or are over in any case."""
        former = self._state.former
        process.resume(former)
        session, post = process.current(), self._loop.call_soon_threadsafe
        session.wanted_until = math.inf
        Claim(
            session,
            self._state.name,
            lambda claimed: post(self._on_claimed, claimed),
            lambda: os.kill(os.getpid(), signal.SIGTERM),
        ).start()
        timeout = session.timeout if former is None else former.timeout
        try:
            claimed = await asyncio.wait_for(self._claimed, timeout)
        except TimeoutError:
            self._say(f"{session.explain(timeout)} Starting without leases.")
            return
        if former is not None and claimed.session.id == former.id:
            await self._restore(claimed, former.timeout)
        elif former is not None:
            self._say(f"The session of {self._state.path} is over. Starting without leases.")
        if session.session_id == claimed.session.id:  # else the file has the next one already
            await self._state.set_session(claimed.session)

    def _on_claimed(self, claimed: Claimed) -> None:
        if not self._claimed.done():
            self._claimed.set_result(claimed)
            return
        self._state.set_session(claimed.session)
        for guid, node in claimed.nodes.items():  # the takeover came too late for its leases
            self._delete(guid, node)

    def _delete(self, guid: str, node: Node) -> None:
        session = process.current()
        session.post(session.attached(Registry).delete, guid, node.path)

    async def _restore(self, claimed: Claimed, timeout: float) -> None:
        """Go on with the leases of the process before."""
        most = LEASE_SHARE * timeout  # no client was told a later end
        restored = [self._go_on(guid, node, most) for guid, node in claimed.nodes.items()]
        leases = [lease for lease in restored if lease is not None]
        if leases:
            await asyncio.wait([lease.settled for lease in leases], timeout=timeout)
        held = sum(lease.is_held for lease in leases)
        self._say(
            f"{held} leases of the process before go on, with its session timeout of {timeout:g} s. Those that no "
            f"client keeps are over in {most:g} s. {len(claimed.nodes) - held} znodes are deleted."
        )

    def _go_on(self, guid: str, node: Node, most: float) -> Lease | None:
        """Go on with a lease; see `Coordinator.restore`. If it cannot go on, its lock is free at its end."""
        try:
            return self._coordinator.restore(node, most)
        except Refusal as error:
            reason = str(error)  # a record with the error itself would keep all these frames
            logger.error("the lease of %s cannot go on, and ends in %.1f s: %s", node.path, most, reason)  # noqa: TRY400
            self._loop.call_later(most, self._delete, guid, node)
            return None
