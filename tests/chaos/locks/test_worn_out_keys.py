"""A key whose counter is used up, or nearly so, is named between its callers, and the printed remedy ends that."""

import contextlib
import shlex
import subprocess
import threading

import pytest
from django.test import override_settings
from support import adminsite
from support.chaos import wrap
from support.ensemble import DEBIAN_DIRECTORY, find_classpath
from support.locking import ending
from support.texts import assert_shows
from support.zoo import eventually

from django_zklock import inspection
from django_zklock.core.queue.order import LAST_SEQUENCE, WEARING_FROM
from django_zklock.management.exit_codes import ExitCode

CHROOT = "/worn"
LIST = "/admin/zklock/lock/"

WORN = {"called": wrap.LARGEST - 1, "stuck": wrap.LARGEST, "last": LAST_SEQUENCE + 1, "negative": -5}
WEARING = {"wearing": LAST_SEQUENCE + 1 - WEARING_FROM}
GOOD = {"many": wrap.LARGEST - 1, "many/1": 7, "half": LAST_SEQUENCE // 2, "long": LAST_SEQUENCE - WEARING_FROM}
"""A directory above other keys is no lock by itself."""


@pytest.fixture(scope="module")
def ensemble(tmp_path_factory):
    with wrap.serving(tmp_path_factory.mktemp("worn"), f"{CHROOT}/zklock", WORN | WEARING | GOOD) as ensemble:
        yield ensemble


@pytest.fixture
def arena(ensemble):
    with wrap.kept_arena(ensemble, CHROOT) as zoo:
        yield zoo


@pytest.fixture
def keys():
    return (*WORN, "half")


def follow(command):
    """Run a printed command. If a caller is in the queue, ZooKeeper refuses, and the operator tries again."""
    program, *arguments = shlex.split(command)
    assert program == "zkCli.sh"
    jars = ":".join(map(str, [*find_classpath(), DEBIAN_DIRECTORY / "commons-cli.jar"]))
    command_line = ["java", "-cp", jars, "org.apache.zookeeper.ZooKeeperMain", *arguments]

    eventually(lambda: subprocess.run(command_line, timeout=60, capture_output=True, check=False).returncode == 0, 60)


@contextlib.contextmanager
def called_once_a_second(worker):
    """Have a worker call for a key in the block. Yield the errors of its calls; None if it had the lock."""
    ended = threading.Event()
    errors = []

    def call():
        while not ended.wait(1):
            errors.append(worker.acquire("called", timeout=3).result(20).get("error"))
            if errors[-1] is None:
                worker.release("called").result(20)

    calling = threading.Thread(target=call)
    calling.start()
    try:
        eventually(lambda: errors, 20)
        yield errors
    finally:
        ended.set()
        calling.join(30)


def assert_named():
    """Fail unless the doctor names each key whose counter is used up or nearly so, and no other."""
    status, printed, _ = ending("doctor", "--incident")
    assert status == ExitCode.COUNTER
    assert_shows(printed, *(f"Counter used up: {key}" for key in WORN))
    assert_shows(printed, "Counter nearly used up: wearing", f"About {WEARING_FROM:,} acquisitions are left")
    assert printed.count("->") == len(WORN | WEARING), "a good key is named, too"


@pytest.mark.django_db
def test_worn_out_keys_are_named_between_two_callers_and_the_remedy_works(pool):
    caller, other = pool.start("A", "B")
    settings = override_settings(**adminsite.SETTINGS)
    with called_once_a_second(caller) as errors, pool.zoo.configured(), settings:
        operator = adminsite.user_with("view_lock")
        for _ in range(5):
            assert_named()
        other.must_acquire("half")
        few = inspection.snapshot(max_age=0, max_locks=len(WORN | WEARING))
        assert {lock.key for lock in few.locks} == (WORN | WEARING).keys(), "a held lock goes first"
        assert few.total == len(WORN | WEARING) + 1
        other.release("half").result()
        page = operator.get(LIST).content.decode()
        assert_shows(page, "Counter used up: called", "Counter nearly used up: wearing")
        assert "Counter nearly used up" in operator.get(f"{LIST}?q=").content.decode()
        assert "No acquisition is left" in ending("doctor")[1]
        assert "Counter used up: called" in ending("status")[1]
        assert "wearing" in ending("list", "--state", "wearing")[1]
        for key in WORN | WEARING:
            follow_remedy(operator, key)
        eventually(lambda: ending("doctor", "--incident")[0] == 0)
        count = len(errors)
        eventually(lambda: None in errors[count:], 20, "the key still refuses its callers")
    assert set(errors[:count]) >= {"UnreadableQueue"}
    pool.assert_kept()


def follow_remedy(operator, key):
    """Run the command that is printed for a key, which is the next one that the doctor names."""
    worst = ExitCode.WEARING if key in WEARING else ExitCode.COUNTER
    eventually(lambda: ending("doctor", "--incident")[0] == worst)
    status, shown, _ = ending("show", key)
    assert status == 0
    (delete,) = [line.removeprefix("Next: ") for line in shown.splitlines() if " delete /" in line]
    assert delete in operator.get(f"{LIST}{key}/change/").content.decode()
    follow(delete)
