"""`manage.py zklock list`, `status` and `show`: trouble, order, filters, colours, and one shape of the JSON."""

import contextlib
import json
import os
import pty

import pytest
from django.core.management import execute_from_command_line
from support.faults import BackgroundCall
from support.locking import as_json, ending, zklock
from support.texts import assert_shows

from django_zklock.management.exit_codes import ExitCode

pytestmark = pytest.mark.django_db


@pytest.fixture
def deadlock(contend):
    """Have web-1 hold a and wait for b, and web-2 the other way round. The lock c has a waiter, too."""
    for key, number in (("a", 1), ("b", 2), ("a", 2), ("b", 1), ("c", 3), ("c", 4)):
        contend(key, number, owner=number)


def listed(*arguments):
    """Return the keys in the order of the list, which the text and the JSON share."""
    keys = [lock["key"] for lock in as_json("list", *arguments)["locks"]]
    lines = zklock("list", *arguments).splitlines()
    assert [line.split()[0] for line in lines[1 : len(keys) + 1]] == keys
    return keys


def waits(links):
    return [(wait["holds"], wait["waits_for"]) for wait in links]


def test_show_tells_of_a_deadlock_and_how_to_end_it(zoo, deadlock):
    for key in "ab":
        assert_shows(zklock("show", key), "DEADLOCK: ", "holds a and waits for b")
    assert "DEADLOCK" not in zklock("show", "c")
    assert "request-release" not in zklock("show", "a"), "a holder that waits cannot finish"
    shown = as_json("show", "a")
    assert shown["state"] == "deadlocked"
    assert waits(shown["chain"]) == [("a", "b"), ("b", "a")]
    assert "Break one of them" in shown["advice"]


def test_a_deadlock_is_an_incident_of_the_status(zoo, deadlock):
    status, text, _ = ending("status")
    assert status == ExitCode.INCIDENT
    assert text.startswith("1. Deadlock: a, b. ")
    assert_shows(text, "   -> Break one of them", "   $ python manage.py zklock break --token=")


def test_a_deadlock_is_the_state_of_its_locks_and_a_cycle(zoo, deadlock):
    states = {lock["key"]: lock["state"] for lock in as_json("list")["locks"]}
    assert states == {"a": "deadlocked", "b": "deadlocked", "c": "contended"}
    assert [line.split()[1] for line in zklock("list").splitlines()[1:4]] == ["deadlocked", "deadlocked", "contended"]
    (cycle,) = as_json("list")["cycles"]
    assert set(waits(cycle)) == {("a", "b"), ("b", "a")}


def test_locks_in_trouble_are_listed_first(zoo, contend, deadlock):
    contend("aaa", 5)
    odd = zoo.client.create(f"{zoo.base}/zzz/who-knows-0000000001", b"", ephemeral=True, makepath=True)
    try:
        keys = listed()
        assert set(keys[:2]) == {"a", "b"}
        assert keys[2:] == ["zzz", "c", "aaa"]
        assert listed("--limit=2") == keys[:2]
        assert "\n2 of 5 locks\n" in zklock("list", "--limit=2")
        assert listed("--sort=key") == ["a", "aaa", "b", "c", "zzz"]
    finally:
        zoo.client.delete(odd)


def test_a_list_is_sorted_by_its_figures(zoo, contend):
    for key, numbers in (("one", (1,)), ("three", (1, 2, 3)), ("two", (1, 2))):
        for number in numbers:
            contend(key, number)
    assert listed("--sort=waiting") == ["three", "two", "one"]
    assert listed("--sort=held") == ["one", "three", "two"]
    assert listed("--sort=wait")[:2] == ["three", "two"]


def test_a_list_is_filtered_by_host_and_by_state(zoo, deadlock):
    assert listed("--host=web-1") == ["a"]
    assert listed("--host=web-9") == []
    assert set(listed("--state=deadlocked")) == {"a", "b"}
    assert set(listed("--state=contended")) == {"a", "b", "c"}
    assert listed("--state=operator") == []
    assert listed("--state=held", "--host=web-3", "c*") == ["c"]


@pytest.mark.parametrize("limit", ["-1", "0", "x", "1e3", ""])
def test_a_limit_below_one_is_refused(zoo, limit):
    status, _, message = ending("list", "--limit", limit)
    assert status == ExitCode.USAGE
    assert message == f"argument --limit: '{limit}' is not a number from 1 to 10000"


def test_the_json_of_free_and_held_locks_has_one_shape(zoo, contend):
    status, text, _ = ending("show", "k", "--json")
    unused = json.loads(text)
    assert status == ExitCode.NO_HOLDER
    contend("k", 1)
    held = as_json("show", "k")
    assert list(unused) == list(held)
    assert (unused["state"], held["state"], unused["path"]) == ("free", "held", held["path"])
    (lock,) = as_json("list")["locks"]
    assert set(lock) < set(held)
    assert {name: type(value) for name, value in lock.items()} == {name: type(held[name]) for name in lock}


def test_the_json_of_a_held_lock_has_the_commands_for_its_holder(zoo, contend):
    contend("k", 1)
    held = as_json("show", "k")
    of_holder = f"--token={held['holders'][0]['token']} --reason='' -- k"
    assert held["commands"] == [
        f"python manage.py zklock request-release {of_holder}",
        f"python manage.py zklock break {of_holder}",
    ]


def test_show_names_the_next_command(zoo, contend):
    contend("k", 1)
    assert "Next: python manage.py zklock break --token=" in zklock("show", "k")
    zklock("hold", "held", "--for=60", "--reason=deploy")
    try:
        assert "Next: python manage.py zklock end-hold --token=" in zklock("show", "held")
    finally:
        zoo.delete("held")


def on_a_terminal(*arguments):
    near, far = pty.openpty()

    def read():
        text = b""
        while not text.endswith(b"<end>"):
            text += os.read(near, 65536)
        return text

    with open(far, "w") as terminal:
        reader = BackgroundCall(read)
        with contextlib.redirect_stdout(terminal):
            execute_from_command_line(["manage.py", "zklock", *arguments])
            print("<end>", end="", flush=True)
        text = reader.result().decode()
    os.close(near)
    assert "deadlocked" in text
    return text


def test_the_list_has_colours_on_a_terminal_only(zoo, deadlock, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[" in on_a_terminal("list")
    assert "\x1b[" not in on_a_terminal("list", "--no-color")
    assert "\x1b[" not in on_a_terminal("list", "--json")
    assert "\x1b[" not in zklock("list")
    assert "\x1b[" in zklock("list", "--force-color")
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[" not in on_a_terminal("list")
