"""The code of the guide to leader election runs."""

import asyncio
import json
import signal
import threading

from support.docs import files_of, run, written
from support.faults import BackgroundCall
from support.project import SETTINGS
from support.zoo import eventually, next_line

from django_zklock import zk_leader
from django_zklock.inspection import look_at

FILES = files_of("how-to/elect-a-leader.md")


def test_the_command_leads_until_it_is_told_to_stop(tmp_path, zoo):
    packages = ("feeds", "feeds/management", "feeds/management/commands")
    files = {f"{name}/__init__.py": "" for name in packages}
    files["project_settings.py"] = SETTINGS.replace('"django_zklock", ', '"django_zklock", "feeds", ')
    project = written("how-to/elect-a-leader.md", tmp_path, files)
    first = project.start("-u", "manage.py", "consume_feed", ZKLOCK_URL=zoo.url())
    second, out = None, ""
    try:
        assert next_line(first).startswith("leads, token ")
        second = project.start("-u", "manage.py", "consume_feed", ZKLOCK_URL=zoo.url())
        zoo.wait_contenders("feeds/consumer", 2, timeout=30)
        for process in (first, second):
            process.send_signal(signal.SIGTERM)
            out, err = process.communicate(timeout=50)
            assert process.returncode == 0, err
        assert out.startswith("leads, token ")
        zoo.assert_empty()
    finally:
        for process in filter(None, (first, second)):
            process.kill()
            process.communicate()


def test_the_examples_of_leading_in_code_run(zoo, rf):
    consume, once, views = (run(FILES[f"feeds/{name}.py"]) for name in ("consumer", "once", "views"))
    asyncio.run(consume["main"]())
    assert once["consume_once"]() > 0
    consumer = views["consumer"]

    def lead(hold):
        status = json.loads(views["status"](rf.get("/")).content)
        assert status["leads_here"]
        assert "process" in status["leader"]

    consumer.run(lead)


def test_an_election_of_kazoo_shares_our_queue(zoo):
    (code,) = files_of("explanation/curator-and-kazoo.md").values()
    names = run(code.replace("127.0.0.1:2181", zoo.hosts))
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
        eventually(lambda: str(look_at("lead").holders[0]).startswith("'web-7', a client of kazoo, "))
        assert ours.is_alive()
        called.set()
        theirs.result()
        assert (ours.result() or 0) > hold.token
    finally:
        zookeeper.stop()
        zookeeper.close()
