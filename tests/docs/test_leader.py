"""The code of the guide to leader election runs."""

from __future__ import annotations

import asyncio
import json
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from django.test import RequestFactory
from support.docs import BLOCK, DOCS
from support.faults import BackgroundCall
from support.project import SETTINGS, Project
from support.zoo import Zoo, eventually

from django_zklock import zk_leader

pytestmark = pytest.mark.zookeeper

PAGE = (DOCS / "how-to" / "elect-a-leader.md").read_text()
FILES = dict(BLOCK.findall(PAGE))


def test_each_block_names_its_file() -> None:
    """So each of them is run below."""
    assert PAGE.count("```python\n") == len(FILES) == 4


def test_the_command_leads_until_it_is_told_to_stop(tmp_path: Path, zoo: Zoo) -> None:
    """The second command leads when the first one is stopped by a signal. Both end normally."""
    project = Project(tmp_path)
    project.write("project_settings.py", SETTINGS.replace('["django_zklock"]', '["django_zklock", "feeds"]'))
    for name in ("feeds/__init__.py", "feeds/management/__init__.py", "feeds/management/commands/__init__.py"):
        project.write(name, "")
    name = "feeds/management/commands/consume_feed.py"
    project.write(name, FILES[name])
    first = project.start("-u", "manage.py", "consume_feed", ZKLOCK_URL=zoo.url())
    second, out = None, ""
    try:
        assert first.stdout is not None
        assert first.stdout.readline().startswith("leads, token ")
        second = project.start("-u", "manage.py", "consume_feed", ZKLOCK_URL=zoo.url())
        zoo.wait_contenders("feeds/consumer", 2)
        for process in (first, second):
            process.send_signal(signal.SIGTERM)
            out, err = process.communicate(timeout=15)
            assert process.returncode == 0, err
        assert out.startswith("leads, token ")
        zoo.assert_empty()
    finally:
        for each in (first, second):
            if each is not None:
                each.kill()
                each.communicate()


def test_the_other_examples_run(zoo: Zoo, rf: RequestFactory) -> None:
    """A coroutine leads, a block leads, and a view shows it."""
    names: dict[str, dict[str, Any]] = {}
    for file in ("feeds/consumer.py", "feeds/once.py", "feeds/views.py"):
        names[file] = {"__name__": file}
        exec(compile(FILES[file], file, "exec"), names[file])
    asyncio.run(names["feeds/consumer.py"]["main"]())
    assert names["feeds/once.py"]["consume_once"]() > 0
    views = names["feeds/views.py"]
    consumer = views["consumer"]

    def lead(hold: Any) -> None:
        status = json.loads(views["status"](rf.get("/")).content)
        assert status["leads_here"]
        assert "process" in status["leader"]

    consumer.run(lead)


def test_an_election_of_kazoo_shares_our_queue(zoo: Zoo) -> None:
    """As in the page on Curator and kazoo: each side waits for the other."""
    page = (DOCS / "explanation" / "curator-and-kazoo.md").read_text()
    ((name, code),) = BLOCK.findall(page)
    assert page.count("```python\n") == 1
    names: dict[str, Any] = {"__name__": name}
    exec(compile(code.replace("127.0.0.1:2181", zoo.hosts), name, "exec"), names)
    zookeeper = names["zookeeper"]
    zookeeper.start(timeout=10)
    try:
        called = threading.Event()
        election = names["election"](f"{zoo.base}/lead", "web-7")
        with zk_leader("lead") as hold:
            theirs = BackgroundCall(lambda: election.run(lambda: called.wait(20)))
            zoo.wait_contenders("lead", 2)
            ours = BackgroundCall(lambda: zk_leader("lead").run(lambda hold: hold.token))
            zoo.wait_contenders("lead", 3)
            assert [len(said) > 100 for said in election.contenders()] == [True, False, True]
            hold.check()
        eventually(lambda: str(zk_leader("lead").current_leader()).startswith("'web-7', a client of kazoo, "))
        assert ours.is_alive()
        called.set()
        theirs.result()
        assert (ours.result() or 0) > hold.token
    finally:
        zookeeper.stop()
        zookeeper.close()
