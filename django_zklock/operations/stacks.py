"""Ask the holders of a lock for their stacks: what the thread, task or greenlet runs now that holds the lock."""

from __future__ import annotations

import uuid
from collections.abc import Container
from dataclasses import replace
from typing import Final

from django_zklock.core import clock
from django_zklock.core.execution.stack import DIRECTORY, read_answer
from django_zklock.core.execution.waiters import ThreadWaiter
from django_zklock.core.protocol.contender_info import OURS, ContenderInfo
from django_zklock.core.protocol.registry import Deletion, Registry
from django_zklock.core.queue.escaping import gettext_noop
from django_zklock.core.queue.nodes import Payload
from django_zklock.core.zk.errors import NodeExists, NodeMissing, Outdated
from django_zklock.core.zk.gateway import Node, NodeReply, WriteReply
from django_zklock.core.zk.multi import Create, SetData
from django_zklock.locks.arguments import blocking
from django_zklock.operations.audit import check_by, record_action
from django_zklock.operations.client import REPLY_TIMEOUT, QueueClient

ANSWER_WITHIN: Final = 2.0
"""Seconds that the holders have to answer."""
MOST: Final = 10
"""Holders of a shared lock that are asked."""
FOREIGN: Final = gettext_noop("It is not work of django-zklock, so nothing can answer.")
NO_ANSWER: Final = gettext_noop("No answer: the interpreter is busy, or its process is stopped or cut off.")


@blocking
def show_stacks(key: str, *, by: str, reply_timeout: float = REPLY_TIMEOUT) -> dict[ContenderInfo, list[str]]:
    """
    Return what the holders of a lock run now: of each, the thread, asyncio task or greenlet, and a line for each frame.

    The innermost frame is first. Without an answer within 2 seconds, the one line says why. The work goes on. Each
    request is written to the log `zklock.audit`. Raises `LockChangedHands` if the lock has no holder,
    `ZooKeeperUnavailable`, and `ValueError` for a wrong value.
    """
    return ask_holders(key, by=by, reply_timeout=reply_timeout)


@blocking
def ask_holders(
    key: str, *, by: str, reply_timeout: float = REPLY_TIMEOUT, recorded: Container[int] = ()
) -> dict[ContenderInfo, list[str]]:
    """Do what `show_stacks` does. The holders whose tokens are `recorded` were asked just before: it is one request."""
    by = check_by(by)
    client = QueueClient(key, reply_timeout)
    shown: dict[ContenderInfo, bytes] = {}
    answers: dict[ContenderInfo, str] = {}  # their paths
    try:
        for child in client.holders()[:MOST]:
            if (node := client.read(child.name)) is None:
                continue
            holder = ContenderInfo.from_node(key, child, node)
            shown[holder] = FOREIGN.encode()
            if holder.client == OURS and holder.operator is None:
                if holder.token not in recorded:
                    record_action("stack shown", client.key, by, "", holder=holder)
                answers[holder] = f"{client.base}/{DIRECTORY}/{child.name}:{uuid.uuid4()}.note"
                _ask(client, child.name, answers[holder])
        until = clock.now() + ANSWER_WITHIN
        shown |= {holder: _read(client, path, until) for holder, path in answers.items()}
    finally:
        for path in answers.values():
            client.session.post(_delete, client, path)
    if not shown:
        raise client.changed_hands()
    return {holder: read_answer(answer) for holder, answer in shown.items()}


def _ask(client: QueueClient, name: str, path: str) -> None:
    """Write a request into the znode of a holder, and create that for the answer, which is gone with this session."""
    while (node := client.read(name)) is not None and (payload := Payload.decode(node.data)) is not None:
        if payload.asked_version != node.version:
            payload = replace(payload, last_write=int(node.mtime - node.ctime))
        data = replace(payload, asked_version=node.version + 1).encode()
        write = (Create(path=path, ephemeral=True), SetData(path=node.path, data=data, version=node.version))
        reply: WriteReply = client.request(lambda gateway, done, write=write: gateway.commit(write, done))  # type: ignore[misc]
        if reply is None or isinstance(reply, NodeExists):  # it exists if the reply to the first try was lost
            return
        if isinstance(reply, NodeMissing):
            reply = client.request(lambda gateway, done: gateway.ensure_path(path.rpartition("/")[0], done))
        if reply is not None and not isinstance(reply, Outdated):
            raise client.with_key(reply)


def _read(client: QueueClient, path: str, until: float) -> bytes:
    """Wait for an answer, until this time on `clock.now()`."""
    waiter: ThreadWaiter[bytes] = ThreadWaiter()

    def read(_deleted: bool = False) -> None:
        client.session.gateway.read(path, on_read, read)

    def on_read(reply: NodeReply) -> None:
        if isinstance(reply, Node) and reply.data:
            waiter.set(reply.data)

    client.session.post(read)
    return waiter.wait(until - clock.now()) or NO_ANSWER.encode()


def _delete(client: QueueClient, path: str) -> None:
    """Delete an answer, even if the connection breaks; on the protocol's thread."""
    registry = client.session.attached(Registry)
    client.session.observers[registry] = None
    parent, _, name = path.rpartition("/")
    Deletion(registry, client.key, parent, name, path).send()
