"""
Knows the own node of a contender: how it gets into the queue, is watched over there, and goes.

Runs on the protocol's thread. What the queue says of the node, the contender knows.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from django_zklock.exceptions import ZkLockError
from django_zklock.locks.protocol import faultpoints
from django_zklock.locks.protocol.directory import Directory
from django_zklock.locks.protocol.registry import Registry
from django_zklock.locks.protocol.replacement import Replacement
from django_zklock.locks.protocol.replies import Turns
from django_zklock.queue import guids, markers, nodes, rules
from django_zklock.queue.nodes import Kind
from django_zklock.queue.operator_hold import HoldLabel
from django_zklock.zk.errors import NodeExists, NodeMissing, OutcomeUnknown, Outdated, SessionGone, ZkError
from django_zklock.zk.gateway import NamesReply, Node, NodeReply, Watch, WriteReply
from django_zklock.zk.multi import Create, SetData

logger = logging.getLogger("django_zklock.locks")

MAX_ENTRIES = 50  # into the queue, that come to nothing one after the other, before something must be very wrong


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a contender is to queue for."""

    key: str
    parent: str  # path of the key's node
    rule: rules.Rule
    kind: Kind
    compat: str | None = None  # the client whose grammar its name is in; None: our own, which is Curator's
    lasting: bool = False  # its directory is not to go when it is empty
    min_hold: float = 0.0  # seconds from the grant; until then an operator hold replaces the node on release
    operator: HoldLabel | None = None  # the person it is for; None: the work itself
    patient: bool  # False: look first, and write nothing when the queue is not empty
    payload: Callable[[str], bytes]  # from the guid of the node to its data
    only_look: bool = False  # never enter
    max_waiters: int | None = None  # that may wait already; with more, give up at once
    deadline: float | None = None  # when the caller gives up, on time.monotonic()
    about: Mapping[str, str] = field(default_factory=dict)  # the work it is for, for what is logged
    template: str = ""  # what the key was made of


class Occupant(Protocol):
    """Who wants the place."""

    def on_entered(self, listed: NamesReply | None) -> None:
        """The node is there; `listed` are the names in the queue, None if it is to be asked for, or a `ZkError`."""

    def on_refused(self, error: ZkLockError) -> None:
        """There is no way in."""

    def on_node_gone(self) -> None:
        """The node was there, and was deleted by somebody else."""

    def on_own_read(self, node: Node) -> None:
        """The node is watched, and this is what it says now."""


class State(enum.Enum):
    """How far the node is."""

    NONE = "there is none"
    CREATING = "its create was sent"
    PREPARING = "its parent is being made"
    INTERRUPTED = "to be created once there is a connection"
    UNSURE = "its create may have been carried out, or not"
    THERE = "it is there"
    LEAVING = "its create was sent, and it is to go as soon as that is answered"
    VACATED = "it was handed to the registry to go, or there is none, and none is wanted"


class Place:
    """The own node in one queue."""

    def __init__(self, registry: Registry, directory: Directory, request: Request, occupant: Occupant) -> None:
        self.node: Node | None = None
        self._registry = registry
        self._directory = directory
        self._request = request
        self._occupant = occupant
        self._turns = Turns(request.key, self._on_failure, request.about)
        self._state = State.NONE
        self._guid = ""
        self._entries = 0  # since the queue last showed the node
        self._watch: Watch | None = None
        self._said: Node | None = None  # the node as it was last read
        self._sign_is_up = False
        self._shares = False  # a sign is to say that it reads, though its name says that it writes
        self._left: Callable[[bool], object] | None = None
        self._replacement: Replacement | None = None  # of the node, when it goes

    # --- in -----------------------------------------------------------------------------------------------------

    def take(self) -> None:
        """Create the node, with its parents where they are missing."""
        self._entries += 1
        if self._entries > MAX_ENTRIES:
            self._occupant.on_refused(
                ZkLockError(f"No way into the queue of {self._request.key!r} after {MAX_ENTRIES} tries.")
            )
            return
        self._turns.next()
        self.node = self._said = None
        # A fresh guid for each create: a node that bears it was made in this session, by this create.
        guid = guids.new(guids.Mark.REPLACEABLE if self._request.min_hold else guids.Mark.OWN)
        self._guid = guid.replace("-", "") if self._request.compat == "kazoo" else guid
        self._state = State.CREATING
        self._registry.guids.add(self._guid)
        try:
            faultpoints.reach("before_create")
            self._directory.enter(
                nodes.prefix(self._guid, self._request.kind, self._request.compat),
                self._request.payload(self._guid),
                self._turns.pass_on(self._on_created),
                self._turns.pass_on(self._on_listed),
            )
            faultpoints.reach("after_create_sent")
        except Exception:
            self._doubt()
            raise

    def confirmed(self) -> None:
        """The queue has shown the node."""
        self._entries = 0

    def _on_created(self, answer: NodeReply) -> None:
        leaving = self._state is State.LEAVING
        if isinstance(answer, Node):
            self.node = answer
            faultpoints.reach("after_create_reply")
            if leaving:
                self._depart()
            else:
                self._settle()
        elif isinstance(answer, OutcomeUnknown):
            if leaving:
                self._depart()
            else:
                self._state = State.UNSURE
        elif not isinstance(answer, SessionGone):
            # Refused, so there is no node. (When the session is gone, its observers are told, and that is told here.)
            self._registry.guids.discard(self._guid)
            if leaving:
                self._state = State.VACATED
                self._report(gone=True)
            elif isinstance(answer, NodeMissing):
                self._prepare()
            else:
                self._state = State.NONE
                self._occupant.on_refused(answer)

    def _settle(self) -> None:
        if self.node is not None:
            self._state = State.THERE
            self._registry.heartbeat.keep(self.node.path, lambda: self._turns.run(self._on_missing))

    def _on_listed(self, answer: NamesReply) -> None:
        if self._state is State.THERE:  # else the create, answered just before, has decided otherwise
            self._occupant.on_entered(answer)

    def _prepare(self) -> None:
        self._turns.next()
        self._state = State.PREPARING
        self._registry.gateway.ensure_path(
            self._request.parent, self._turns.pass_on(self._on_prepared), lasting=self._request.lasting
        )

    def _on_prepared(self, answer: WriteReply) -> None:
        if isinstance(answer, (OutcomeUnknown, SessionGone)):
            self._state = State.INTERRUPTED
        elif isinstance(answer, ZkError):
            self._state = State.NONE
            self._occupant.on_refused(answer)
        else:
            self.take()  # and once more from the start if the server has reaped the empty parent in between

    def reconnected(self) -> None:
        """Take up what the break of the connection interrupted."""
        if self._state is State.INTERRUPTED:
            self.take()
        elif self._state is State.UNSURE:
            self._directory.names_after_barrier(self._turns.pass_on(self._on_children_after_break))
        else:
            if self._watch is not None:
                self.watch()  # the old one ended with the connection
            if self._shares:
                self._put_sign()

    def _on_children_after_break(self, answer: NamesReply) -> None:
        """Find the node whose create was not answered."""
        if isinstance(answer, NodeMissing):
            answer = []
        if isinstance(answer, (OutcomeUnknown, SessionGone)):
            return  # there will be another connection
        if isinstance(answer, ZkError):
            self._occupant.on_refused(answer)
            return
        found = [name for name in answer if nodes.bears(name, self._guid)]
        if found:
            path = f"{self._request.parent}/{found[0]}"
            self._registry.gateway.read(path, self._turns.pass_on(self._on_found))
        else:
            self._take_anew()

    def _on_found(self, answer: NodeReply) -> None:
        if isinstance(answer, Node) and answer.owner == self._registry.session.session_id:
            self.node = answer
            self._settle()
            self._occupant.on_entered(None)
        elif isinstance(answer, (Node, NodeMissing)):
            self._take_anew()
        elif not isinstance(answer, (OutcomeUnknown, SessionGone)):
            self._occupant.on_refused(answer)

    def _take_anew(self) -> None:
        self._registry.guids.discard(self._guid)
        self.take()

    # --- there --------------------------------------------------------------------------------------------------

    def watch(self) -> None:
        """Notice when the node is deleted by somebody else, at once instead of at the next heartbeat."""
        self._unwatch()
        if self.node is None:
            return

        def on_read(answer: NodeReply) -> None:
            if isinstance(answer, NodeMissing):
                self._on_missing()
            elif isinstance(answer, Node):
                self._said = answer
                self._occupant.on_own_read(answer)

        def on_event(deleted: bool) -> None:
            if deleted:
                self._on_missing()
            else:
                self.watch()

        self._watch = self._registry.gateway.read(
            self.node.path, self._turns.pass_on(on_read), self._turns.pass_on(on_event)
        )

    def share(self) -> None:
        """Have a sign say from now on that the node, which is one that writes, only reads."""
        if self._state is State.THERE and not self._shares:
            self._shares = True
            self._registry.guids.add(self._sign)
            self._put_sign()

    def _put_sign(self) -> None:
        """Put up the sign, and write the node, so that those who watch it look again; who waits till then is safe."""
        if self.node is None or self._sign_is_up:
            return
        sign = Create(path=f"{self._request.parent}/{self._sign}", ephemeral=True)
        said = self._said if self._said is not None else self.node
        node = SetData(path=said.path, data=said.data, version=said.version)
        self._registry.gateway.commit((sign, node), self._turns.pass_on(self._on_sign))

    def _on_sign(self, answer: WriteReply) -> None:
        self._sign_is_up = answer is None or isinstance(answer, NodeExists)
        if isinstance(answer, Outdated) and self.node is not None:  # written by a release request
            self._registry.gateway.read(self.node.path, self._turns.pass_on(self._on_said))
        elif isinstance(answer, ZkError) and not isinstance(answer, (NodeExists, OutcomeUnknown, SessionGone)):
            logger.warning("readers cannot be let in beside the holder of lock %s: %s", self._request.key, answer)

    def _on_said(self, answer: NodeReply) -> None:
        if isinstance(answer, Node):
            self._said = answer
            self._put_sign()

    def _take_down_sign(self) -> None:
        if self._shares:
            self._shares = self._sign_is_up = False
            sign = f"{self._request.parent}/{self._sign}"
            self._registry.depart(self._request.parent, self._sign, sign, None, self._request.about)

    @property
    def _sign(self) -> str:
        return markers.reader_marker(self._guid)

    def _unwatch(self) -> None:
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.cancel()

    def _on_missing(self) -> None:
        if self._state is State.THERE:
            self._take_down_sign()
            self.forget()
            self._occupant.on_node_gone()

    # --- out ----------------------------------------------------------------------------------------------------

    @property
    def gone(self) -> bool:
        """Whether no node of this place can be in ZooKeeper."""
        return self._guid not in self._registry.guids

    def forget(self) -> None:
        """There is no node any more: it was deleted, or its session is over."""
        self._turns.next()
        self._unwatch()
        if self.node is not None:
            self._registry.heartbeat.drop(self.node.path)
            self.node = None
        self._registry.guids.discard(self._guid)
        if self._shares:  # gone with the session
            self._registry.guids.discard(self._sign)
            self._shares = self._sign_is_up = False
        if self._state in (State.LEAVING, State.VACATED):
            self._state = State.VACATED
            self._report(gone=True)
        else:
            self._state = State.NONE

    def vacate(self, left: Callable[[bool], object], replacement: Replacement | None = None) -> None:
        """
        See to it that nothing stays in ZooKeeper but the `replacement`; once only.

        `left` is called once: with True when the node is gone, with False when it is clear that it will take a while.
        """
        self._left = left
        self._replacement = replacement
        self._unwatch()
        if self._state is State.CREATING:
            self._state = State.LEAVING
            return
        before, self._state = self._state, State.VACATED
        self._turns.next()
        if before in (State.THERE, State.UNSURE):
            self._depart()
        else:
            self._report(gone=True)

    def _depart(self) -> None:
        self._state = State.VACATED
        path = self.node.path if self.node is not None else None
        if path is not None:
            self._registry.heartbeat.drop(path)
        left, self._left = self._left, None
        self._registry.depart(self._request.parent, self._guid, path, left, self._request.about, self._replacement)
        self._take_down_sign()  # after the node, or that would be one that writes again

    def _report(self, *, gone: bool) -> None:
        left, self._left = self._left, None
        if left is not None:
            left(gone)

    def _doubt(self) -> None:
        """Take a create whose sending, or whose answer, came to nothing for one that may have been carried out."""
        if self._state is State.CREATING:
            self._state = State.UNSURE

    def _on_failure(self, error: Exception) -> None:
        self._doubt()
        if self._state is State.LEAVING:
            self._depart()
        self._occupant.on_refused(ZkLockError(f"The lock protocol failed: {error!r}."))
