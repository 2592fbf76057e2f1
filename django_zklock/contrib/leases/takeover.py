"""Go on with the session and the leases of the coordinator that used the same state file before."""

from __future__ import annotations

import asyncio
import math
import secrets
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

    def __init__(
        self,
        state: StateFile,
        coordinator: Coordinator,
        say: Callable[[str], object],
        on_replaced: Callable[[], object],
    ) -> None:
        """Prepare it. `on_replaced` is called when another process has taken over the session of this one."""
        self._state = state
        self._coordinator = coordinator
        self._say = say
        self._on_replaced = on_replaced
        self._loop = asyncio.get_running_loop()
        self._claimed: asyncio.Future[tuple[FormerSession | None, Nodes]] = self._loop.create_future()

    async def run(self, new_options: Callable[[], SessionOptions]) -> None:
        """Begin the session. If there was one before, wait until its leases go on here, or are over in any case."""
        former = self._state.former
        process.configure(lambda: replace(new_options(), former=former))
        session = process.current()
        session.wanted_until = math.inf
        post = self._loop.call_soon_threadsafe
        Claim(
            session,
            secrets.token_hex(8).encode(),
            lambda nodes: post(self._on_connected_to, session.described(), nodes),
            lambda: post(self._on_replaced),
        ).start()
        if former is None:
            return
        try:
            present, nodes = await asyncio.wait_for(asyncio.shield(self._claimed), former.timeout)
        except asyncio.TimeoutError:
            self._claimed.cancel()
            self._say(f"{session.explain(former.timeout)} The leases of {self._state.path} are over.")
            return
        if present is None or present.id != former.id:
            self._say(f"The session of {self._state.path} is over. Starting without leases.")
        else:
            await self._restore(former, nodes)
            if process.current().session_id == present.id:
                self._state.set_session(present)

    def _on_connected_to(self, present: FormerSession | None, nodes: Nodes | None) -> None:
        if not self._claimed.done() and self._state.former is not None and nodes is not None:
            self._claimed.set_result((present, nodes))
            if present is None or present.id == self._state.former.id:
                return  # its leases come first
        if present is not None:
            self._state.set_session(present)

    async def _restore(self, former: FormerSession, nodes: Nodes) -> None:
        """Go on with the leases of the process before, and delete all other znodes of its session."""
        now, ends = clock.now(), self._state.ends
        leases: list[Lease] = []
        others: list[str] = []
        for path, node in nodes.items():
            lease = self._lease(node, former, now) if node.czxid in ends else None
            if lease is None:
                others.append(path)
                continue
            leases.append(lease)
            if len(leases) == 1:
                await lease.settled  # then the session is confirmed, for the others as well
        if leases:
            await asyncio.wait([lease.settled for lease in leases])
        session = process.current()
        for path in others:
            session.post(session.gateway.delete, path)
        for token in ends.keys() - {lease.token for lease in leases if lease.is_held}:
            self._state.forget(token)
        held = sum(lease.is_held for lease in leases)
        self._say(f"{held} leases go on in this process. {len(others)} znodes without a lease are deleted.")

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
