"""`manage.py zklock`: status, list, show and the doctor."""

import json
import os
import re

import pytest
from django.test import override_settings
from kazoo.security import OPEN_ACL_UNSAFE, make_acl
from support.ensemble import free_ports
from support.faults import acquire_once, within
from support.locking import as_json, ending, zklock
from support.texts import assert_shows
from support.zoo import eventually

from django_zklock import zk_lock
from django_zklock.core.queue import nodes
from django_zklock.core.zk import process as zk_process
from django_zklock.management.exit_codes import ExitCode

pytestmark = pytest.mark.django_db  # the doctor looks at fenced rows

GUID = "01234567-89ab-4def-8123-456789abcdef"


def test_status_ends_with_0_if_all_was_looked_at_and_nothing_was_found(zoo):
    with zk_lock("orders/7"), zk_lock("stock"), zoo.hold_elsewhere("orders/7"):
        status, text, message = ending("status")
        data = as_json("status")
    assert (status, message) == (ExitCode.OK, "")
    assert text == "2 held, 1 waiting. Nothing needs attention. Looked at: 2 of 2 locks, 1 of 1 servers.\n"
    assert (data["healthy"], data["held"], data["waiting"], data["problem"]) == (True, 2, 1, "")


def test_status_ends_with_20_for_an_incident_and_is_not_healthy(zoo, stuck):
    status, text, _ = ending("status", "--json")
    report = json.loads(text)
    assert (status, report["healthy"]) == (ExitCode.INCIDENT, False)
    assert [incident["cause"] for incident in report["incidents"]] == ["orphan"]


@pytest.mark.parametrize("command", ["status", "doctor"])
def test_a_lock_that_may_not_be_read_is_neither_an_incident_nor_healthy(zoo, command):
    with zk_lock("k") as hold:
        zoo.client.set_acls(
            f"{zoo.base}/k", [make_acl("world", "anyone", write=True, create=True, delete=True, admin=True)]
        )
        status, text, message = ending(command, "--json")
        zoo.client.set_acls(f"{zoo.base}/k", OPEN_ACL_UNSAFE)
        hold.check()
    assert (status, json.loads(text)["healthy"]) == (ExitCode.PARTIAL, False), message


def test_the_list_has_a_line_for_each_lock(zoo):
    with zk_lock("orders/7") as hold, zk_lock("stock"), zoo.hold_elsewhere("orders/7"):
        _titles, first, second, *_ = zklock("list").splitlines()
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
    eventually(lambda: "kept for the next user, idle for " in zklock("list"))
    assert "keeps" in zklock("show", "stock")
    assert "1 of them kept for the next user" in zklock("doctor")
    eventually(lambda: as_json("list")["locks"][0]["idle_for"] > 0.5)
    assert as_json("list")["locks"][0]["held_for"] is None
    zk_process.reset()


def test_show_hints_at_an_entry_that_needs_fields(zoo):
    use = "Give --field sku=VALUE, or the whole key."
    locks = {"inventory": {"path": "inventory/{sku}"}}
    with zoo.configured(LOCKS=locks):
        message = f"'inventory' is an entry of LOCKS with the path 'inventory/{{sku}}'. {use}"
        assert ending("show", "inventory")[2] == message


def test_the_doctor_finds_a_healthy_ensemble_healthy_and_says_that_an_address_is_new(zoo):
    """A misspelt chroot excludes nobody. As soon as the address is used, it is not new."""
    new = "new: no process has used it"
    assert new in next(check["text"] for check in as_json("doctor")["checks"] if check["name"] == "address")
    with zk_lock("k"):
        data = as_json("doctor")
    checks = {check["name"]: check for check in data["checks"]}
    assert data["healthy"] is True
    assert new not in checks["address"]["text"]
    of_importance = {checks[name]["result"] for name in ("connection", "session timeout", "write")}
    assert of_importance <= {"ok", "warning"}, "a busy machine is slow"


@pytest.fixture
def stuck(zoo):
    """A contender without a session, which stays for ever."""
    path = zoo.client.create(f"{zoo.base}/stuck/{nodes.prefix(GUID)}0000000000", b"", makepath=True)
    yield path
    zoo.client.delete(path)


def test_the_doctor_names_a_contender_without_a_session(zoo, stuck):
    status, text, _ = ending("doctor")
    assert status == ExitCode.FAILED
    assert re.search("orphan.*stuck", text), text


def test_the_doctor_names_a_queue_with_an_unknown_name(zoo):
    odd = zoo.client.create(f"{zoo.base}/odd/who-knows-0000000001", b"", ephemeral=True, makepath=True)
    try:
        status, text, _ = ending("doctor")
    finally:
        zoo.client.delete(odd)
    assert status == ExitCode.FAILED
    assert re.search("queue.*odd", text), text


def test_an_operator_hold_is_no_contender_without_a_session(zoo):
    zklock("hold", "drained", "--for=60", "--reason=deploy")
    try:
        status, text, _ = ending("doctor")
    finally:
        zoo.delete("drained")
    assert (status, "orphan" in text) == (ExitCode.OK, False)


def test_the_doctor_reports_missing_rights(zoo):
    zoo.client.ensure_path(zoo.chroot)
    zoo.client.create(zoo.base, b"", acl=[make_acl("world", "anyone", read=True)])
    status, text, _ = ending("doctor")
    assert status == ExitCode.FAILED
    assert "ZooKeeper gives callers no lock" in text
    assert "world:anyone:r" in text


def without_zookeeper(*command):
    with override_settings(ZKLOCK={"URL": "zk://127.0.0.1:1/x?connect_timeout=0.3"}), within(4):
        return ending(*command)


@pytest.mark.parametrize("command", [["status"], ["list"], ["show", "k"], ["doctor"], ["run", "k", "--", "true"]])
def test_without_zookeeper_the_exit_code_is_69(zoo, command):
    more = ["--reply-timeout=300ms"] if command[0] != "run" else []
    status, text, message = without_zookeeper(command[0], *more, *command[1:])
    assert status == ExitCode.UNAVAILABLE, message
    assert message
    assert ("number of locks unknown: not connected" in text) is (command[0] == "list")


def test_without_zookeeper_the_status_has_the_cause(zoo):
    with override_settings(ZKLOCK={"URL": "zk://127.0.0.1:1/x?connect_timeout=0.3"}):
        eventually(lambda: "refused" in zk_process.current().explain())
        message = ending("status", "--reply-timeout=300ms")[2]
    assert "No connection to ZooKeeper at 127.0.0.1:1: connection refused." in message


def test_without_zookeeper_the_doctor_has_one_error_for_the_connection(zoo):
    _, text, message = without_zookeeper("doctor", "--reply-timeout=300ms")
    assert message == "errors: 2, warnings: 1"
    assert text.count("No connection to ZooKeeper") == 1


@pytest.mark.parametrize("command", [["status"], ["doctor"]])
def test_a_look_ends_earlier_if_no_server_runs(zoo, command):
    """All servers have a share of the time, at once. A slow one may need it all."""
    hosts = ",".join(f"127.0.0.1:{port}" for port in free_ports(3))
    with override_settings(ZKLOCK={"URL": f"zk://{hosts}/x"}), within(8):
        status, text, message = ending(*command, "--reply-timeout=20s")
    assert status == ExitCode.UNAVAILABLE, message
    assert "0 of 3 servers are in a quorum" in text
