"""What is to go wrong: replies to lose, replies to delay. It knows operations by name and no connections."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Final

from django_zklock.testing.server.codes import Op

#: The names of operations, as kazoo's client has them, and what they are on the wire.
OPERATIONS: Final[dict[str, tuple[Op, ...]]] = {
    "create": (Op.CREATE, Op.CREATE2, Op.CREATE_CONTAINER, Op.CREATE_TTL),
    "delete": (Op.DELETE,),
    "exists": (Op.EXISTS,),
    "get": (Op.GET_DATA,),
    "set": (Op.SET_DATA,),
    "get_acls": (Op.GET_ACL,),
    "set_acls": (Op.SET_ACL,),
    "get_children": (Op.GET_CHILDREN, Op.GET_CHILDREN2),
    "sync": (Op.SYNC,),
    "multi": (Op.MULTI,),
    "multi_read": (Op.MULTI_READ,),
    "ping": (Op.PING,),
    "auth": (Op.AUTH,),
    "get_ephemerals": (Op.GET_EPHEMERALS,),
    "set_watches": (Op.SET_WATCHES, Op.SET_WATCHES2),
    "add_watch": (Op.ADD_WATCH,),
    "remove_watches": (Op.REMOVE_WATCHES,),
    "close": (Op.CLOSE,),
    "connect": (Op.CONNECT,),
}


def operations(name: str) -> tuple[Op, ...]:
    """Return what a name stands for. Raises ValueError for one that stands for nothing."""
    try:
        return OPERATIONS[name]
    except KeyError:
        raise ValueError(f"{name!r} is none of the operations {', '.join(OPERATIONS)}") from None


@dataclass(slots=True, eq=False)
class Loss:
    """A reply that is to be lost."""

    ops: tuple[Op, ...]
    session_id: int | None
    done: threading.Event = field(default_factory=threading.Event)


class Faults:
    """The faults in force. Guarded by being the server thread's alone."""

    def __init__(self) -> None:
        self.refuse = False
        self.stall = False
        self.losses: list[Loss] = []
        self.delays: dict[int, float] = {}

    def lose(self, loss: Loss) -> None:
        """Lose the next such reply."""
        self.losses.append(loss)

    def delay(self, ops: tuple[Op, ...], seconds: float) -> None:
        """Delay all such replies; 0 ends it."""
        for op in ops:
            if seconds > 0:
                self.delays[op] = seconds
            else:
                self.delays.pop(op, None)

    def take_loss(self, op: int, session_id: int | None) -> Loss | None:
        """Return the loss that this reply is to suffer, and forget it."""
        for loss in self.losses:
            if op in loss.ops and loss.session_id in (None, session_id):
                self.losses.remove(loss)
                return loss
        return None
