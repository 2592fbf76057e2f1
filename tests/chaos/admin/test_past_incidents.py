"""
Work without an end, seen by several processes that share a database: what is said of it is stored, and true.

`integration/admin/test_incidents` has the same in one process.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.project import SETTINGS, Project, environment
from support.zoo import Zoo, eventually, next_line

from django_zklock.management.exit_codes import ExitCode

pytestmark = [pytest.mark.zookeeper, pytest.mark.timeout(200)]

EVENTS = """
INSTALLED_APPS += ["django_zklock.contrib.events"]
DATABASES["default"] = {
    "ENGINE": "django.db.backends.sqlite3",
    "NAME": "%s",
    "OPTIONS": {"timeout": 20, "transaction_mode": "IMMEDIATE"},
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
"""
SETUP = """
import os, sys
import django
os.environ["DJANGO_SETTINGS_MODULE"] = "project_settings"
django.setup()
"""
HANGS = (
    SETUP
    + """
import ctypes, threading
from django_zklock import zk_locks
from django_zklock.contrib.events import recorder
from django_zklock.exceptions import LockLost

def work():
    try:
        with zk_locks(*[f"orders/{number}" for number in range(5)]) as holds:
            recorder.flush(10)
            print(*[hold.token for hold in holds], flush=True)
            ctypes.CDLL(None).read(0, ctypes.create_string_buffer(1), 1)  # no abort strikes this call
    except LockLost:
        pass
    recorder.flush(10)
    print("ended", flush=True)

thread = threading.Thread(target=work)
thread.start()
thread.join()
"""
)
WEB = (
    SETUP
    + """
import json
from django_zklock import inspection
from django_zklock.report import verdict

for line in sys.stdin:
    snapshot = inspection.snapshot(max_age=0, max_waiters=1)
    seen = verdict.look(snapshot, inspection.ensemble())
    cards = [incident.describe() for incident in seen.incidents]
    print(json.dumps([seen.healthy, str(seen), cards]), flush=True)
"""
)
Start = Callable[[str], "subprocess.Popen[str]"]


@pytest.fixture
def shop(zoo: Zoo, tmp_path: Path) -> Project:
    """A project with the app of events, and a database in a file."""
    project = Project(tmp_path)
    project.write("project_settings.py", SETTINGS + EVENTS % (tmp_path / "db.sqlite3"))
    project.write("hangs.py", HANGS)
    project.write("web.py", WEB)
    project.succeed("manage.py", "migrate", "-v0")
    return project


@pytest.fixture
def start(zoo: Zoo, shop: Project) -> Iterator[Start]:
    started = []

    def start_one(script: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, script],
            cwd=shop.directory,
            env=environment(ZKLOCK_URL=zoo.url()),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start_one
    for process in started:
        process.kill()
        process.communicate()


def look(web: subprocess.Popen[str]) -> tuple[bool, str, list[dict[str, Any]]]:
    """Have a web process look; return whether it is green, its sentence, and its cards."""
    assert web.stdin is not None
    web.stdin.write("\n")
    web.stdin.flush()
    healthy, sentence, cards = json.loads(next_line(web))
    return healthy, sentence, cards


def causes(web: subprocess.Popen[str]) -> list[str]:
    return [card["cause"] for card in look(web)[2]]


def test_the_look_of_one_process_is_the_first_look_of_all(zoo: Zoo, shop: Project, start: Start) -> None:
    """The processes are killed when nobody looks. No look is green, and a fresh process agrees with an old one."""
    worker, web = start("hangs.py"), start("web.py")
    next_line(worker)
    assert look(web)[0]
    worker.kill()
    eventually(lambda: not zoo.children("orders/0"), 20)
    eventually(lambda: "First look: " in look(web)[1], 20)
    healthy, sentence, cards = look(web)
    assert (healthy, cards) == (False, [])
    assert "may have ended with 5 locks. Look again in 8 s." in sentence
    eventually(lambda: causes(web) == ["ended"], 20)
    (card,) = look(start("web.py"))[2]
    assert "with 5 locks" in card["title"]
    assert card["identity"] == look(web)[2][0]["identity"]


def test_the_doctor_says_of_a_broken_lock_that_its_work_may_go_on(zoo: Zoo, shop: Project, start: Start) -> None:
    """Its process lives, or was killed later: it is not said that it was killed before the locks were free."""
    worker, web = start("hangs.py"), start("web.py")
    tokens = next_line(worker).split()
    for number, token in enumerate(tokens):
        command = ["zklock", "break", f"orders/{number}", "--no-input", "--token", token, "--reason", "hung"]
        shop.succeed("manage.py", *command, ZKLOCK_URL=zoo.url(), LOGNAME="anna")

    def assert_broken() -> None:
        (card,) = look(web)[2]
        assert card["cause"] == "broken"
        assert card["title"].startswith("Broken by anna@")
        assert "its work has not ended yet: orders/" in card["title"]
        assert "may still run" in card["explanation"]
        assert "killed" not in str(card)

    assert_broken()
    doctor = shop.run("manage.py", "zklock", "doctor", "--incident", ZKLOCK_URL=zoo.url())
    assert doctor.returncode == ExitCode.BROKEN, doctor.stdout + doctor.stderr
    history = shop.succeed("manage.py", "zklock", "history", ZKLOCK_URL=zoo.url()).stdout
    assert history.count("; no end of its work is recorded") == 5
    assert "No longer held" not in history
    identity = look(web)[2][0]["identity"]
    worker.kill()
    eventually(lambda: look(web)[2][0]["age"] > 12, 20)
    assert_broken()
    assert look(start("web.py"))[2][0]["identity"] == identity


def test_the_end_of_broken_work_ends_the_incident(zoo: Zoo, shop: Project, start: Start) -> None:
    worker, web = start("hangs.py"), start("web.py")
    tokens = next_line(worker).split()
    command = ["zklock", "break", "orders/0", "--no-input", "--token", tokens[0], "--reason", "hung"]
    shop.succeed("manage.py", *command, ZKLOCK_URL=zoo.url(), LOGNAME="anna")
    assert causes(web) == ["broken"]
    assert worker.stdin is not None
    worker.stdin.write("\n")
    worker.stdin.flush()
    assert next_line(worker) == "ended"
    eventually(lambda: look(web)[0], 20)
