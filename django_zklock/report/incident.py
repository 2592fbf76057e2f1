"""An incident: one cause, and all that it affects. A subclass for each cause has its texts, and finds it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final

from django.utils.translation import gettext as _

from django_zklock.core.queue.command_line import command
from django_zklock.report import formatting

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Self

    from django_zklock.inspection import ScannedContender, Wait
    from django_zklock.report.facts import Facts, Held

MANY: Final = 3
"""Locks of one host, losses, or locks of ended processes, from which on the host is the cause; waiters of a queue."""
MAX_NAMED: Final = 3
"""Keys that a text names, and holders that the commands name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """
    One cause, and all that it affects.

    The docstring of a subclass says in the documentation when it is found, and `ends` how it ends.
    """

    cause: ClassVar[str] = ""
    severity: ClassVar[str] = "warning"
    """ "error" if work is blocked, or no longer exclusive, until a person acts."""
    word: ClassVar[Any] = ""
    """One word for it, for the head of its card. Without one, the state of its locks says it."""
    title: ClassVar[Any] = ""
    who: ClassVar[Any] = ""
    """A sentence about its holders. A card has them as rows instead."""
    sentence: ClassVar[Any] = "%(detail)s"
    remedy: ClassVar[Any] = ""
    ends: ClassVar[str] = ""
    act: ClassVar[str] = ""
    """Its main button: "health", "host", "end", "ask" or "break"."""
    command: ClassVar[str] = ""
    """A command that gets the key or the host. The commands that end the holds follow."""
    of_host: ClassVar[bool] = False
    """Whether it is the same one whatever locks of the host it has."""

    keys: tuple[str, ...] = ()
    """The locks, those with the most waiters first."""
    host: str = ""
    pid: int = 0
    """0 if several processes of the host are concerned."""
    age: float | None = None
    """Seconds for which it has certainly lasted; None if that is not known."""
    blocked: int = 0
    """Callers that wait for these locks, and for the locks of holders that wait for them."""
    behind: tuple[tuple[int, Wait], ...] = ()
    """The holders that wait for these locks, as a tree: the depth, from 1, and the wait."""
    values: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """More values for its texts."""
    detail: str = ""
    """The words of ZooKeeper, or of the error about the queue."""
    holders: tuple[tuple[str, ScannedContender], ...] = ()
    """The holders that can be asked, broken or ended, each with its key."""

    @classmethod
    def find(cls, facts: Facts) -> Iterator[Self]:
        """Yield the incidents of this cause."""
        raise NotImplementedError

    @classmethod
    def of(cls, facts: Facts, held: Sequence[Held], **more: Any) -> Iterator[Self]:
        """Yield the incident of these holders, if there are any."""
        held = sorted(held, key=lambda pair: (-pair[0].waiting, pair[0].key))
        keys = tuple(dict.fromkeys(lock.key for lock, _holder in held))
        blocked, behind = facts.behind(keys)
        processes = sorted({(holder.host, holder.pid) for _lock, holder in held})
        for host, pid in processes[:1]:
            yield cls(
                keys=keys,
                host=host,
                pid=pid if len(processes) == 1 else 0,
                age=max(holder.certain_duration for _lock, holder in held) or None,
                blocked=blocked,
                behind=behind,
                holders=tuple((lock.key, holder) for lock, holder in held),
                **more,
            )

    @property
    def state(self) -> str:
        """The state of its locks, in the list and on their pages: that of `formatting.STATE_LABELS`."""
        return "blocked" if self.severity == "error" else "slow"

    @property
    def identity(self) -> str:
        """
        Return a text of at most 32 characters, the same as long as it is the same incident, in each process.

        Its cause and its locks tell it, also when their holders change; or its host. Causes in the servers have one.
        """
        of = self.host if self.of_host or not self.keys else sorted(self.keys)
        return f"{self.cause}-{hashlib.sha256(repr(of).encode()).hexdigest()[:16]}"

    def texts(self) -> dict[str, Any]:
        """Return the values that its texts name."""
        named = self.holders[:MAX_NAMED]
        holders = [f"{formatting.key_text(key, 200)}: {formatting.holder_text(holder)}" for key, holder in named]
        values: dict[str, Any] = {
            "keys": formatting.keys_text(self.keys, MAX_NAMED),
            "process": formatting.host_and_pid(self.host, self.pid),
            "count": len(self.keys),
            "time": formatting.duration(self.age or 0.0),
            "detail": formatting.clean(self.detail, formatting.MAX_ERROR),
            "holders": "; ".join(holders),
        }
        for _key, holder in named[:1]:
            values |= {"holder": formatting.process_of(holder), "work": formatting.work_of(holder)}
            values["time"] = values["time"] if self.of_host else formatting.span(holder)
            values["operator"] = "" if holder.operator is None else formatting.operator_text(holder.operator)
        return {**values, **self.values}

    def commands(self) -> list[str]:
        """Return the commands of its remedy: its own one, and those that end the first holds, the mildest first."""
        host = (self.host or None) if self.command == "list" else None
        own = [command(self.command, *self.keys[: self.command == "show"], host=host)] if self.command else []
        mildest = 0 if self.act == "ask" else -1
        holds = [(key, holder) for key, holder in self.holders[:MAX_NAMED] if holder.holds]
        return own + [line for key, holder in holds for line in formatting.hold_commands(key, holder)[mildest:]]

    def describe(self) -> dict[str, Any]:
        """Return the texts, the facts and the commands, for a page, for JSON or for a terminal."""
        values = self.texts()
        title, who, remedy = (str(text) % values for text in (self.title, self.who, self.remedy))
        waits = formatting.waits_text(self.blocked) if self.blocked else ""
        names = ("cause", "identity", "severity", "act", "host", "pid", "age", "blocked")
        return {
            **{name: getattr(self, name) for name in names},
            "title": title,
            "explanation": " ".join(filter(None, (waits, who, self.sentences(), self._tree()))),
            "remedy": remedy,
            "commands": self.commands(),
            "token": next((holder.token for _key, holder in self.holders), None),
            "keys": list(self.keys),
            "behind": [
                {"depth": depth, "key": wait.holds, "waits_for": wait.waits_for, "who": formatting.clean(wait.who)}
                for depth, wait in self.behind
            ],
        }

    def sentences(self) -> str:
        """Return the sentences that no row of a card says."""
        return " ".join(filter(None, (str(self.sentence) % self.texts(), self._asked())))

    def _tree(self) -> str:
        keys = formatting.keys_text([wait.holds for _depth, wait in self.behind], MAX_NAMED)
        return _("Behind it: %(locks)s.") % {"locks": keys} if keys else ""

    def _asked(self) -> str:
        """Return who asked the holders last to release, when and why; empty if nobody did."""
        requests = [holder.release_request for _key, holder in self.holders if holder.release_request is not None]
        if not requests:
            return ""
        latest = max(requests, key=lambda request: request.at)
        return _("Asked by %(request)s.") % {"request": formatting.request_text(latest)}
