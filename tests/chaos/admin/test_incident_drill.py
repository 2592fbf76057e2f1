"""Incidents of real processes that show after some time: page and doctor name the cause, and the remedy works."""

import runpy
import signal

import pytest
from support.drill import LOGIN
from support.proxy import Proxy
from support.zoo import TESTS

pytestmark = pytest.mark.timeout(600)

KEY = "orders/1042"
FIFTY = [f"orders/{number:03}" for number in range(50)]


INCIDENTS = runpy.run_path(str(TESTS.parent / "scripts" / "incidents.py"))


@pytest.mark.parametrize("play", INCIDENTS["PLAYS"], ids=lambda play: play.__name__)
def test_an_incident_is_named_with_its_cause_and_remedy(three, tmp_path, play):
    _named, cause, remedy, commands, _away = INCIDENTS["played"](three, tmp_path, play)
    assert (cause, remedy, "NO" in commands) == ("yes", "yes", False), commands


def test_a_paused_host_is_not_said_to_be_dead(drill):
    batch, web = drill.program("batch-1"), drill.program("web-1")
    batch.hold(*FIFTY[:3])
    drill.wait_recorded(3)
    batch.process.send_signal(signal.SIGSTOP)
    web.tell("use", *FIFTY[:3])
    web.hear(*(f"used {key}" for key in FIFTY[:3]))
    drill.finds("ended", "batch-1", "ended or were cut off, with 3 locks", "killed or paused", "or still run")
    batch.process.send_signal(signal.SIGCONT)
    batch.tell("answer")
    batch.hear(*(f"lost {key} LockLost" for key in FIFTY[:3]))
    drill.is_calm()


def test_a_hung_host_with_fifty_locks(drill):
    batch, web = drill.hang("batch-1", *FIFTY, waiters=1)
    commands = drill.finds("host", "batch-1", "with 50 locks", "50 callers wait", "If it hangs, break them")
    assert all(key in drill.paste(commands, "list --host=batch-1") for key in FIFTY)
    (card,) = drill.cards()
    (page,) = [href for label, href in card.links.items() if "All locks of batch-1" in label]
    drill.press(page, "break", confirm="batch-1")
    web.hear(*(f"used {key}" for key in FIFTY))
    drill.finds("broken", f"Broken by {LOGIN}", "batch-1", "has not ended")
    assert "killed" not in " ".join(card.text for card in drill.cards())
    batch.tell("answer")
    batch.hear(*(f"lost {key} LockLost" for key in FIFTY))
    drill.is_calm()


def test_flapping_connections_of_one_host(drill):
    with Proxy(drill.zoo.address) as proxy:
        programs = [drill.program("batch-1", proxy.address) for _ in range(3)]
        for number, program in enumerate(programs):
            program.hold(f"orders/{number}")
        proxy.hang = True
        web = drill.program("web-1")
        web.tell("use", "orders/0", "orders/1", "orders/2")  # waits until the sessions have ended
        web.hear("used orders/0", "used orders/1", "used orders/2")
        for number, program in enumerate(programs):
            program.tell("answer")
            program.hear(f"lost orders/{number} LockLost")
        proxy.heal()
        commands = drill.finds("flapping", "batch-1", "has lost its locks 3 times", "Look at its network")
        assert "batch-1" in drill.paste(commands, "history --host=batch-1")
        for number, program in enumerate(programs):
            program.learn(f"orders/{number}")
        drill.acknowledge()


@pytest.mark.parametrize(("client", "name"), [("plain_kazoo", "kazoo"), ("jvm", "Curator")])
def test_another_client_blocks_a_key(drill, request, client, name):
    other = request.getfixturevalue(client)
    path = f"{drill.zoo.base}/{KEY}"
    kind = "mutex" if client == "jvm" else "lock"
    assert other.try_acquire("A", kind, path)
    web = drill.program("web-1")
    web.tell("wait", KEY)
    commands = drill.finds("foreign", KEY, name, "1 caller waits", "End its program, or break the lock")
    drill.paste(commands, "break")
    web.hear(f"used {KEY}")
    drill.is_calm()
