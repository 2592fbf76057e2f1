"""The named moments of the protocol at which a test injects a fault."""

from __future__ import annotations

import functools
from typing import Literal, TypeAlias, get_args

from django_zklock.core.protocol.contender import Contender, Predecessors
from django_zklock.core.protocol.registry import Registry
from django_zklock.core.queue import order
from django_zklock.core.zk.gateway import Gateway

Faultpoint: TypeAlias = Literal[
    "before_create",
    "after_create_sent",
    "after_create_reply",
    "after_list",
    "before_watch",
    "after_watch",
    "on_wake",
    "before_grant",
    "before_delete",
    "after_delete_sent",
]

FAULTPOINTS = get_args(Faultpoint)
"""In the order in which a contender reaches them; all on the protocol's thread."""


def install(reach):
    def wrap(owner, name, before, after=None):
        method = getattr(owner, name)

        @functools.wraps(method)
        def reaching(*args, **options):
            if before is not None:
                reach(before)
            result = method(*args, **options)
            if after is not None:
                reach(after)
            return result

        setattr(owner, name, reaching)

    wrap(Registry, "create_and_list", "before_create", "after_create_sent")
    wrap(order, "verdict", "after_create_reply", "after_list")
    wrap(Predecessors, "_watch", "before_watch", "after_watch")
    wrap(Predecessors, "_end", "on_wake")
    wrap(Contender, "_hold", "before_grant")
    wrap(Gateway, "delete", "before_delete", "after_delete_sent")
