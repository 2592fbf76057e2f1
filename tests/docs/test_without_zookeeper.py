"""The page about outages: each row of its tables that no other test shows."""

import pytest
from django.core.management import CommandError, call_command
from support.docs import run_all
from support.policytasks import POLICIES
from support.proxy import Proxy
from support.worker import Worker, outcome, settled

from django_zklock import zk_locked
from django_zklock.exceptions import ZooKeeperUnavailable

PAGE = "how-to/when-zookeeper-is-down.md"


def down(zoo):
    return zoo.configured("127.0.0.1:1", CONNECT_TIMEOUT=0.2)


def test_each_policy_of_a_task_does_as_the_page_says(zoo, tmp_path):
    tasks = "support.policytasks"
    with Proxy(zoo.address) as proxy:
        proxy.refuse = True
        with Worker(zoo, tmp_path, tasks=tasks, hosts=proxy.address, concurrency=3) as worker:
            sent = {policy: worker.send(f"policy.{policy}", f"down-{policy}") for policy in POLICIES}
            assert settled(sent["retry"]) == "RETRY"
            assert [outcome(sent[policy]) for policy in ("raise", "skip", "value")] == ["ZooKeeperUnavailable"] * 3
            assert sent["wait"].state in ("PENDING", "STARTED")
            proxy.heal()
            assert [outcome(sent[policy]) for policy in ("retry", "wait")] == ["done"] * 2


def test_a_function_that_may_be_skipped_raises(zoo):
    with down(zoo), pytest.raises(ZooKeeperUnavailable):
        zk_locked("a", timeout=0, on_conflict="skip")(lambda: None)()


def test_a_command_under_a_lock_is_not_started(zoo, tmp_path):
    with down(zoo), pytest.raises(CommandError) as caught:
        call_command("zklock", "run", "a", "--timeout", "0", "--", "touch", str(tmp_path / "started"))
    assert caught.value.returncode == 69
    assert not (tmp_path / "started").exists()


def test_the_example_goes_on_without_its_lock(zoo):
    page = run_all(PAGE)
    page["fetch_once"]()
    with zoo.hold_elsewhere("rates"):
        page["fetch_once"]()
    assert page["fetched"] == ["rates"]
    with down(zoo):
        page["fetch_once"]()
    assert page["fetched"] == ["rates", "rates"]
