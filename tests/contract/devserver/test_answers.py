"""The dev server answers a client as ZooKeeper does. The client is kazoo, and both servers get the same calls."""

import contextlib

import pytest
from kazoo.exceptions import KazooException
from kazoo.protocol.states import ZnodeStat
from kazoo.security import make_acl
from support.chaos.servers import looking_in
from support.jute import EPHEMERAL, create
from support.wire import Wire
from support.zoo import eventually


class Script:
    """Calls of a client on one server, and what came back: numbers of transactions count from the first call."""

    def __init__(self, client, port):
        self.client = client
        self.port = port
        self.answers = []
        self._events = []
        self._first = client.create("/first", include_data=True)[1].czxid

    def call(self, method, *arguments, **options):
        """Note what a method of the client returns or raises."""
        try:
            answer = getattr(self.client, method)(*arguments, **options)
        except KazooException as error:
            answer = type(error).__name__
        self.note(answer)

    def note(self, answer):
        self.answers.append(self._plain(answer))

    def _plain(self, answer):
        """Leave out times, transactions before the script, and the numbers of sessions. Children have no order."""
        if isinstance(answer, ZnodeStat):
            zxids = [max(0, zxid - self._first) for zxid in (answer.czxid, answer.mzxid, answer.pzxid)]
            versions = (answer.version, answer.cversion, answer.aversion)
            return zxids, versions, answer.dataLength, answer.numChildren, answer.ephemeralOwner != 0
        if isinstance(answer, tuple):
            return tuple(map(self._plain, answer))
        if isinstance(answer, list):
            return sorted((self._plain(item) for item in answer), key=repr)
        return type(answer).__name__ if isinstance(answer, Exception) else answer

    def see(self, *paths):
        for path in paths:
            self.call("get", path)
            self.call("get_children", path, include_data=True)

    def watch(self, path):
        """Watch a node in all ways."""
        for method in ("get", "exists", "get_children"):
            with contextlib.suppress(KazooException):
                getattr(self.client, method)(path, watch=self._on_event)

    def _on_event(self, event):
        self._events.append((event.type, event.path))

    def all_events(self):
        """Return the events of all watches, in their order."""
        self.watch("/last")
        self.client.create("/last")
        eventually(lambda: ("CREATED", "/last") in self._events)
        return self._events

    def transaction(self, *parts):
        transaction = self.client.transaction()
        for method, *arguments in parts:
            getattr(transaction, method)(*arguments)
        self.answers.append([self._plain(result) for result in transaction.commit()])


def creates(script):
    script.call("create", "/d", b"x", include_data=True)
    for number, options in enumerate(
        ({}, {"sequence": True}, {"ephemeral": True}, {"ephemeral": True, "sequence": True})
    ):
        script.call("create", f"/d/{number}-", b"x", include_data=True, **options)
        script.call("create", f"/d/{number}-", b"", **options)
    script.call("create", "/d/2-/child")
    script.call("create", "/none/child")
    script.call("create", "/zookeeper/quota")
    script.call("create", "/d/control\x01")
    script.call("create", "/d/ä...", b"")
    script.see("/", "/d", "/d/0-", "/d/2-", "/d/ä...", "/zookeeper")


def sequence_numbers(script):
    for path in ("/d/n-", "/d/n-", "/d/"):
        script.call("create", path, sequence=True, makepath=True)
    script.call("delete", "/d/n-0000000001")
    script.call("create", "/d/n-0000000003")
    for _ in range(3):
        script.call("create", "/d/n-", sequence=True)
    script.see("/d")


def changes(script):
    script.call("create", "/d")
    script.call("set", "/d", b"1")
    script.call("set", "/d", b"x" * 100_000, version=1)
    script.call("set", "/d", b"3", version=1)
    script.call("set", "/none", b"")
    script.call("create", "/d/a")
    script.call("delete", "/d")
    script.call("delete", "/d/a", version=3)
    script.call("delete", "/d/a", version=0)
    script.call("delete", "/d/a")
    script.call("delete", "/zookeeper")
    script.call("exists", "/d")
    script.call("exists", "/none")
    script.call("sync", "/d")
    script.see("/d", "/none")
    acl = [make_acl("ip", "127.0.0.1", all=True)]
    script.call("set_acls", "/d", acl)
    script.call("get_acls", "/d")
    script.call("set_acls", "/d", acl, version=7)
    script.call("delete", "/d")


def transactions(script):
    good = [("create", "/t/a", b"x"), ("set_data", "/t", b"1"), ("check", "/t", 1), ("delete", "/t/a")]
    bad = [("create", "/t"), ("set_data", "/none", b""), ("check", "/t", 7), ("delete", "/")]
    script.call("create", "/t")
    script.transaction(*good)
    for index, part in enumerate(bad):
        script.transaction(*good[:index], part, *good[index + 1 :])
    script.transaction(("create", "/t/s-", b"", None, False, True), ("create", "/t/s-", b"", None, True, True))
    script.transaction(("create", "/t/no", b"", None, True), ("create", "/t/no/below"))
    script.see("/t")


def watches(script):
    for path in ("/w", "/w/a"):
        script.watch(path)
    script.call("create", "/w")
    script.watch("/w")
    script.call("set", "/w", b"1")
    script.call("set", "/w", b"2")
    script.call("create", "/w/a")
    script.watch("/w")
    script.watch("/w/a")
    script.transaction(("set_data", "/w", b"3"), ("delete", "/w/a"))
    script.watch("/w")
    script.call("delete", "/w")


def sessions(script):
    """A session keeps its ephemerals until its end, also for another connection that has its password."""
    with looking_in(f"127.0.0.1:{script.port}") as other:
        other.create("/s", ephemeral=True)
        script.watch("/s")
        script.call("get", "/s")
    script.call("exists", "/s")
    first = Wire(script.port)
    first.connect()
    first.ask(create("/kept", b"", EPHEMERAL))
    first.drop()
    for password in (b"wrong" * 4, first.password):
        again = Wire(script.port)
        script.note(again.connect(session=first.session, password=password))
        script.call("exists", "/kept")
        again.end()
    script.call("exists", "/kept")


@pytest.mark.parametrize("script", [creates, sequence_numbers, changes, transactions, watches, sessions])
def test_the_dev_server_answers_as_zookeeper(pair, script):
    answers = {}
    for name, port in pair.items():
        with looking_in(f"127.0.0.1:{port}") as client:
            on_server = Script(client, port)
            script(on_server)
            answers[name] = [*on_server.answers, "events:", *on_server.all_events()]
            for path in client.get_children("/"):
                if path != "zookeeper":
                    client.delete(f"/{path}", recursive=True)
    assert answers["dev"] == answers["real"]
    assert len(answers["real"]) > 5
