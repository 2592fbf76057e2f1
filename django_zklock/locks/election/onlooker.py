"""Knows the lead as those see it who take no part: who leads now, who stands by, and each change."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

from django_zklock.locks.election import observer
from django_zklock.locks.election.observer import Candidate, Observation
from django_zklock.locks.validation import refuse_running_loop


class Onlooker:
    """Whoever looks at one lead; from any thread."""

    def __init__(self) -> None:
        self._stopping = False  # final; set before those who look on are stopped
        self._observations: dict[Observation, None] = {}  # single steps only

    def _place(self) -> tuple[str, str]:
        """Return the key that is looked at, and the path of its directory."""
        raise NotImplementedError

    @property
    def stopping(self) -> bool:
        """Whether it was stopped."""
        return self._stopping

    def _look_no_more(self) -> None:
        self._stopping = True
        for observation in list(self._observations):
            observation.stop()

    def who(self) -> Candidate | None:
        """Return who leads now, whichever candidate that is, or None. Raises `ZooKeeperUnavailable`."""
        refuse_running_loop("who", "await leader.awho()")
        return observer.who(*self._place())

    async def awho(self) -> Candidate | None:
        """Return who leads now, as `who` does."""
        return await observer.awho(*self._place())

    def candidates(self) -> tuple[Candidate, ...]:
        """Return who leads and who stands by, in order, the first fifty. Raises `ZooKeeperUnavailable`."""
        refuse_running_loop("candidates", "await leader.acandidates()")
        return observer.candidates(*self._place())

    async def acandidates(self) -> tuple[Candidate, ...]:
        """Return who leads and who stands by, as `candidates` does."""
        return await observer.acandidates(*self._place())

    def observe(self, timeout: float | None = None) -> Iterator[Candidate | None]:
        """
        Yield who leads, or None, and then each change of that, for at most `timeout` seconds (None: until `stop`).

        It takes no part. A watch wakes it, so nothing is asked while nothing changes. It goes on through losses of
        the connection and the session; while ZooKeeper is away, it has nothing to tell. A lead that came and went
        between two looks is left out.
        """
        refuse_running_loop("observe", "async for ... in leader.aobserve()")
        observation = Observation(*self._place())
        self._observations[observation] = None
        try:
            if not self._stopping:
                yield from observation.follow(timeout)
        finally:
            observation.stop()
            self._observations.pop(observation, None)

    async def aobserve(self, timeout: float | None = None) -> AsyncIterator[Candidate | None]:
        """Yield what `observe` does; waiting costs no thread."""
        observation = Observation(*self._place())
        self._observations[observation] = None
        try:
            if not self._stopping:
                async for candidate in observation.afollow(timeout):
                    yield candidate
        finally:
            observation.stop()
            self._observations.pop(observation, None)
