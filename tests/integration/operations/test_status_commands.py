"""`manage.py zklock`: status, list, show and the doctor."""

import contextlib
import json
import os
import re
import signal
import socket
import time

import pytest
from django.test import override_settings
from kazoo.security import make_acl
from support.faults import acquire_once, within
from support.locking import MANAGE, as_json, ending, zklock
from support.texts import assert_shows
from support.zoo import eventually, namespace, next_line

from django_zklock import zk_lock
from django_zklock.core.queue import nodes
from django_zklock.core.zk import process as zk_process
from django_zklock.management.exit_codes import ExitCode
from django_zklock.testing.server import DevServer
from django_zklock.testing.server.four_letter import COMMANDS

pytestmark = pytest.mark.django_db  # the doctor looks at fenced rows

GUID = "01234567-89ab-4def-8123-456789abcdef"
HOSTILE = "\x1b]0;owned\x07\x1b[2J\u202e<script>alert(1)</script>\r\n\x9b31m[bold red]x[/] \ud800"


def hostile(zoo, key, data):
    prefix = f"{zoo.base}/{key}/{nodes.prefix(GUID)}"
    return str(zoo.client.create(prefix, data, ephemeral=True, sequence=True, makepath=True))


def test_show_tells_what_the_holder_runs(zoo, caplog):
    with zk_lock("a") as hold:
        lines = zklock("show", "a", "--stack").splitlines()
        stacks = as_json("show", "a", "--stack")["stacks"]
    (stack,) = stacks.values()
    first = next(index for index, line in enumerate(lines) if line.startswith("Stack of "))
    assert lines[first + 1] == stack[0]
    assert stack[0].startswith("thread ")
    assert any("test_show_tells_what_the_holder_runs at " in line for line in lines[first:])
    assert list(stacks) == [str(hold.token)]
    assert caplog.text.count("the stack of the holder") == 2


def test_show_asks_for_a_stack_only_if_it_is_told_to(zoo, caplog):
    with zk_lock("a"):
        text = zklock("show", "a")
        assert_shows(text, "Next: python manage.py zklock show --stack -- a", hides=["Stack of"])
        assert "stacks" not in as_json("show", "a")
    assert "the stack of the holder" not in caplog.text
    assert ending("show", "a", "--stack")[0] == ExitCode.NO_HOLDER
    with zoo.configured(STACKS=False), zk_lock("a"):
        assert "--stack" not in zklock("show", "a")


def test_status_counts_the_locks_and_the_list_has_a_line_for_each(zoo):
    with zk_lock("orders/7") as hold, zk_lock("stock"), zoo.hold_elsewhere("orders/7"):
        text, data = zklock("status"), as_json("status")
        _titles, first, second, *_ = zklock("list").splitlines()
    assert text.startswith("CONNECTED to ")
    assert "2 locks held, 1 contended, 1 waiting" in text
    assert (data["held"], data["contended"], data["waiting"], data["problem"]) == (2, 1, 1, None)
    assert data["connection"]["state"] == "connected"
    assert_shows(first, "orders/7", str(hold.token), str(os.getpid()))
    assert second.startswith("stock")
    assert "0 locks" in zklock("list")


def test_show_lists_the_holder_and_the_waiters_in_order(zoo):
    with zk_lock("inventory/{sku}", fields={"sku": "a b"}) as hold, zoo.hold_elsewhere(hold.key) as path:
        for name in (hold.key, "inventory/a b"):
            data = as_json("show", name)
            assert data["holders"][0]["token"] == str(hold.token)
            assert [waiter["name"] for waiter in data["waiters"]] == [path.rpartition("/")[2]]
        assert as_json("show", "inventory/{sku}", "--field=sku=a b")["key"] == hold.key
        text = zklock("show", hold.key)
        assert "holds" in text
        assert hold.key in text
    status, _, message = ending("show", "inventory/a b")
    assert (status, message) == (ExitCode.NO_HOLDER, "The lock 'inventory/a b' is free.")


def test_an_idle_lock_is_listed_as_kept(zoo):
    acquire_once("stock", linger=60)
    eventually(lambda: as_json("status")["idle"] == 1)
    text = zklock("status")
    assert "0 locks held, 1 kept for the next user" in text
    assert "kept for the next user, idle for " in zklock("list")
    assert "keeps" in zklock("show", "stock")
    assert "1 of them kept for the next user" in zklock("doctor")
    (lock,) = as_json("list")["locks"]
    assert (lock["held_for"], lock["idle_for"] > 0.5) == (None, True)
    zk_process.reset()


def test_show_hints_at_an_entry_that_needs_fields(zoo):
    use = "Give --field sku=VALUE, or the whole key."
    locks = {"inventory": {"path": "inventory/{sku}"}, "stock": {"path": "goods/{sku}"}}
    with zoo.configured(LOCKS=locks):
        message = f"'inventory' is an entry of LOCKS with the path 'inventory/{{sku}}'. {use}"
        assert ending("show", "inventory")[2] == message
        message = f"The lock 'goods' is free. LOCKS has 'stock' with the path 'goods/{{sku}}'. {use}"
        assert ending("show", "goods")[2] == message


def test_list_watch_writes_a_line_for_each_scan(zoo):
    process = zoo.spawn(MANAGE[2], "zklock", "list", "--watch=100ms", "--json")

    def listed():
        return [lock["key"] for lock in json.loads(next_line(process))["locks"]]

    assert listed() == []
    with zk_lock("seen"):
        assert eventually(listed) == ["seen"]
    eventually(lambda: not listed())
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=50)
    assert (process.returncode, err) == (0, "")


def test_hostile_payloads_are_harmless(zoo):
    names = ("host", "what", "since", "thread")
    payload = {"version": 1, "guid": GUID, "pid": 10**400, "about": {HOSTILE: HOSTILE}, **dict.fromkeys(names, HOSTILE)}
    zoo.client.ensure_path(zoo.base)
    paths = [hostile(zoo, key, json.dumps(payload).encode()) for key in ("k", "odd\u202ename")]
    try:
        texts = [zklock("list"), zklock("list", "--json"), zklock("show", "k"), zklock("show", "k", "--json")]
        texts += [zklock("status"), ending("doctor")[1]]
        for text in texts:
            assert not set(text) & {"\x07", "\x9b", "\u202e", "\u0085", "\ud800"}
            assert not re.search(r"\x1b(\]|\[2J)", text)
            assert 0 < len(text) < 20_000
    finally:
        for path in paths:
            zoo.client.delete(path)


def test_the_doctor_finds_a_healthy_ensemble_healthy_and_says_that_an_address_is_new(zoo):
    """A misspelt chroot excludes nobody. As soon as the address is used, it is not new."""
    new = "new: no process has used it"
    assert new in next(check["text"] for check in as_json("doctor")["checks"] if check["name"] == "address")
    with zk_lock("k"):
        data = as_json("doctor")
    checks = {check["name"]: check for check in data["checks"]}
    assert data["healthy"] is True
    assert new not in checks["address"]["text"]
    of_importance = {checks[name]["result"] for name in ("connection", "session timeout", "write", "rights")}
    assert of_importance <= {"ok", "warning"}, "a busy machine is slow"
    assert "!doctor" not in zoo.names(zoo.base)


def test_the_doctor_names_orphans_and_unreadable_queues(zoo):
    """A contender without a session stays for ever, but an operator hold may. An unknown name blocks a queue."""
    stays = zoo.client.create(f"{zoo.base}/stuck/{nodes.prefix(GUID)}0000000000", b"", makepath=True)
    odd = zoo.client.create(f"{zoo.base}/odd/who-knows-0000000001", b"", ephemeral=True, makepath=True)
    zklock("hold", "drained", "--for=60", "--reason=deploy")
    try:
        status, text, _ = ending("doctor")
        assert status == ExitCode.FAILED
        assert "drained" not in text
        assert re.search("orphan.*stuck", text), text
        assert re.search("queue.*odd", text), text
        zoo.client.delete(odd)
        assert ending("doctor")[0] == ExitCode.FAILED
        zoo.client.delete(stays)
        assert ending("doctor")[0] == ExitCode.OK
    finally:
        zklock("end-hold", "drained")
        for path in (stays, odd):
            if zoo.client.exists(path):
                zoo.client.delete(path)


def test_the_doctor_reports_missing_rights(zoo):
    zoo.client.ensure_path(zoo.chroot)
    zoo.client.create(zoo.base, b"", acl=[make_acl("world", "anyone", read=True)])
    status, text, _ = ending("doctor")
    assert status == ExitCode.FAILED
    assert "may not create nodes below" in text
    assert "world:anyone:r" in text


def test_the_doctor_gives_each_server_the_time_for_a_reply(monkeypatch):
    answer = COMMANDS[b"srvr"]

    def slow_answer(service):
        time.sleep(1.5)
        return answer(service)

    monkeypatch.setitem(COMMANDS, b"srvr", slow_answer)
    with DevServer() as server, namespace(server) as zoo:
        checks = as_json("doctor", "--reply-timeout=30s")["checks"]
        (server_check,) = (check for check in checks if check["name"] == "server")
        assert server_check["text"].startswith(f"{zoo.hosts}: standalone")


def without_zookeeper(*command):
    with override_settings(ZKLOCK={"URL": "zk://127.0.0.1:1/x?connect_timeout=0.3"}), within(4):
        return ending(*command)


@pytest.mark.parametrize("command", [["status"], ["list"], ["show", "k"], ["doctor"], ["run", "k", "--", "true"]])
def test_without_zookeeper_the_exit_code_is_69(zoo, command):
    more = ["--reply-timeout=300ms"] if command[0] != "run" else []
    status, text, message = without_zookeeper(command[0], *more, *command[1:])
    assert status == ExitCode.UNAVAILABLE, message
    assert message
    assert "locks held" not in text
    assert ("number of locks unknown: not connected" in text) is (command[0] in ("status", "list"))


def test_without_zookeeper_the_status_has_the_cause(zoo):
    with override_settings(ZKLOCK={"URL": "zk://127.0.0.1:1/x?connect_timeout=0.3"}):
        eventually(lambda: "refused" in zk_process.current().explain())
        message = ending("status", "--reply-timeout=300ms")[2]
    assert "No connection to ZooKeeper at 127.0.0.1:1: connection refused." in message


def test_without_zookeeper_the_doctor_has_one_error_for_the_connection(zoo):
    _, text, message = without_zookeeper("doctor", "--reply-timeout=300ms")
    assert message == "errors: 2, warnings: 1"
    assert text.count("No connection to ZooKeeper") == 1


@pytest.mark.parametrize("command", [["status"], ["doctor"], ["doctor", "--incident"]])
def test_a_look_ends_earlier_if_no_server_answers(zoo, command):
    """All servers have a share of the time, at once. A slow one may need it all."""
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(3)]  # they accept nothing
        hosts = ",".join(f"127.0.0.1:{server.getsockname()[1]}" for server in servers)
        stack.enter_context(override_settings(ZKLOCK={"URL": f"zk://{hosts}/x"}))
        stack.enter_context(within(8))
        status, text, message = ending(*command, "--reply-timeout=20s")
    assert status == ExitCode.UNAVAILABLE, message
    assert "0 of 3 servers answered within 6 s" in text or command == ["status"]
