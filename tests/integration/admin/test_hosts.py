"""The page of a host, and actions on many locks at once."""

import logging
import re
from itertools import chain, repeat
from types import SimpleNamespace

import pytest
from django.contrib.admin.models import LogEntry
from support.adminsite import LIST, user_with
from support.signalled import received
from support.texts import assert_shows

from django_zklock import inspection
from django_zklock.admin import LockAdmin
from django_zklock.dashboard import holders
from django_zklock.signals import lock_broken

pytestmark = pytest.mark.django_db

HOST = f"{LIST}host/"
WORKER = f"{HOST}?host=worker-7"
BREAK = f"{LIST}break/"
MANY = 30
BREAK_ALL = {"reason": "it hangs", "confirm": "worker-7", "break": "1"}


@pytest.fixture
def held(contend):
    """Thirty locks of one host, for one of which it waits behind another host."""
    paths = [contend(f"orders/{number:02}", host="worker-7", pid=7 + number % 2) for number in range(MANY)]
    return [*paths, contend("stock"), contend("stock", host="worker-7", pid=7)]


def ticks(response):
    return [row.target for _lock, row in response.context["holds"]]


def test_a_host_shows_all_that_it_holds_and_waits_for(zoo, held, operator):
    response = operator.get(WORKER)
    assert sorted(lock.key for lock, _row in response.context["holds"]) == [f"orders/{n:02}" for n in range(MANY)]
    assert [lock.key for lock, _row in response.context["waits"]] == ["stock"]
    assert len(ticks(operator.get(f"{WORKER}&pid=8"))) == MANY / 2
    assert operator.get(HOST)["Location"] == LIST


def test_only_those_who_may_break_get_ticks_and_a_button(zoo, held, operator):
    page = operator.get(WORKER).content.decode()
    assert page.count(" checked>") == MANY
    assert "Break the ticked locks" in page
    assert "Break the ticked locks" not in user_with("view_lock").get(WORKER).content.decode()


def test_the_pages_link_to_the_host(zoo, held, operator):
    link = 'host/?host=worker-7&amp;pid=7"'
    page = operator.get(f"{LIST}orders_2F00/change/").content.decode()
    assert page.count(link) == 2  # its process, and "and 4 more" of its other locks
    assert link in operator.get(f"{LIST}stock/change/").content.decode()  # a waiter
    assert WORKER in operator.get(f"{LIST}groups/?by=host").content.decode()


def test_all_locks_of_a_host_are_broken_with_its_name_typed(zoo, held, operator, caplog):
    form = {"target": ticks(operator.get(WORKER)), **BREAK_ALL}
    response = operator.post(WORKER, {**form, "confirm": "worker-8"})
    assert "Nothing was broken" in response.content.decode()
    assert response.content.decode().count(" checked>") == MANY
    assert all(map(zoo.client.exists, held))
    with caplog.at_level(logging.INFO, "zklock.audit"):
        response = operator.post(WORKER, form, follow=True)
    (message,) = map(str, response.context["messages"])
    assert re.fullmatch(rf"{MANY} locks were broken: (orders/\d\d, ){{4}}orders/\d\d and 25 more\.", message)
    assert not any(map(zoo.client.exists, held[:MANY]))
    assert LogEntry.objects.count() == caplog.text.count("it hangs") == MANY


def test_a_stale_target_is_left_out_of_many(zoo, contend, held, operator):
    targets = ticks(operator.get(WORKER))
    zoo.client.delete(held[3])
    successor = contend("orders/03", host="worker-7", pid=7)
    response = operator.post(WORKER, {"target": targets, **BREAK_ALL})
    assert response.status_code == 409
    assert_shows(response.content.decode(), "29 locks were broken: ", "orders/03 now belongs to worker-7 · pid 7, for ")
    assert_shows(response.content.decode(), "nothing was done: orders/03.", hides=[" checked>", "it hangs"])
    assert zoo.client.exists(successor)


def test_the_release_of_all_locks_of_a_host_is_requested(zoo, held, operator):
    form = {"target": ticks(operator.get(WORKER)), "ask": "1"}
    assert "required" in operator.post(WORKER, {**form, "reason": ""}).content.decode()
    page = operator.post(WORKER, {**form, "reason": "a deploy"}, follow=True).content.decode()
    assert f"{MANY} holders were asked to release: " in page
    assert re.search(r"Release requested: [^:]+: a deploy \(20\d\d-\d\d-\d\d \d\d:\d\d:\d\d C[SD]T\)", page)
    assert LogEntry.objects.count() == MANY


def test_many_ticked_locks_of_the_list_are_broken(zoo, held, operator):
    keys = [f"orders/{number:02}" for number in range(25)]
    response = operator.post(LIST, {"action": "break_selected", "_selected_action": keys})
    assert len(ticks(response)) == response.content.decode().count(" checked>") == 25
    form = {"target": ticks(response), **BREAK_ALL, "confirm": "25"}
    assert operator.post(BREAK, {**form, "confirm": "24"}).status_code == 200
    assert zoo.client.exists(held[0])
    assert operator.post(BREAK, form)["Location"] == LIST
    assert [bool(zoo.client.exists(path)) for path in held[:MANY]] == [False] * 25 + [True] * 5
    response = operator.post(LIST, {"action": "request_release_of_selected", "_selected_action": ["stock"]})
    assert len(ticks(response)) == 1


def test_a_request_ends_before_a_web_server_ends_it(zoo, held, operator, monkeypatch):
    times = chain([0.0, 1.0, 14.0], repeat(16.0))  # at first, and before each lock
    shown = operator.get(WORKER)
    first, second = (lock.key for lock, _row in shown.context["holds"][:2])
    monkeypatch.setattr(holders, "clock", SimpleNamespace(now=lambda: next(times)))
    response = operator.post(WORKER, {"target": ticks(shown), **BREAK_ALL})
    page = response.content.decode()
    assert response.status_code == 409
    assert_shows(page, f"2 locks were broken: {first}, {second}.", "The time was too short, so nothing was done yet: ")
    assert page.count(" checked>") == MANY - 2
    assert 'value="it hangs"' in page
    assert LogEntry.objects.count() == MANY - len([path for path in held[:MANY] if zoo.client.exists(path)]) == 2


def test_a_bulk_break_tells_what_was_done_when_zookeeper_goes_away(
    single,
    zoo,
    held,
    operator,
    caplog,
    monkeypatch,
):
    broken = []

    def pause_after_three(lock, **more):
        broken.append(lock)
        if len(broken) == 3:
            single.servers[0].pause()
            monkeypatch.setattr(LockAdmin, "reply_timeout", 1.5)  # no answer comes

    form = {"target": ticks(operator.get(WORKER)), **BREAK_ALL}
    try:
        with received(lock_broken, pause_after_three), caplog.at_level(logging.INFO, "zklock.audit"):
            response = operator.post(WORKER, form)
    finally:
        single.servers[0].resume()
    page = response.content.decode()
    assert response.status_code == 503
    (done,) = re.findall(r"\d locks were broken: (.*?)(?: and \d more)?\.", page)
    assert done.split(", ") == broken[: len(done.split(", "))]
    assert len(broken) >= 3, "the server may answer a little longer"
    assert_shows(page, "It is unknown whether it was done: ", "so nothing was done yet: ", "ZooKeeper does not answer.")
    assert_shows(page, hides=['name="break"'])
    logged = sorted(LogEntry.objects.values_list("object_id", flat=True))
    assert logged[: len(broken)] == broken
    assert caplog.text.count("may have been broken") == len(logged) - len(broken) <= 1, "it may read a last request"
    assert caplog.text.count("it hangs") == len(logged)
    paths = dict(zip((f"orders/{number:02}" for number in range(MANY)), held, strict=False))
    gone = [key for key, path in paths.items() if not zoo.client.exists(path)]
    assert gone in (broken, logged)


def test_no_more_than_fifty_holders_are_shown_and_broken_at_once(contend, operator):
    for number in range(52):
        contend(f"jobs/{number:02}", host="worker-8")
    worker = f"{HOST}?host=worker-8"
    response = operator.get(worker)
    assert len(ticks(response)) == response.content.decode().count(" checked>") == 50
    assert "and 2 more" in response.content.decode()
    form = {"target": ticks(response), **BREAK_ALL, "confirm": "worker-8"}
    page = operator.post(worker, form, follow=True).content.decode()
    assert "50 locks were broken: " in page
    assert page.count(" checked>") == 2


@pytest.mark.parametrize("action", ["break", "ask"])
def test_bulk_actions_need_their_permission(zoo, held, action):
    other = {"break": "request_release_lock", "ask": "break_lock"}[action]
    assert user_with("view_lock", other).post(WORKER, {action: "1"}).status_code == 403
    assert user_with(other).get(HOST).status_code == 403


def test_a_host_is_found_among_more_locks_than_are_shown(contend, operator, monkeypatch):
    original = inspection.snapshot
    monkeypatch.setattr(inspection, "snapshot", lambda **more: original(**{"max_locks": 3, "max_age": 0, **more}))
    for key in ("k0", "k1", "k2", "k3") * 2:
        contend(key)
    contend("import/x", 2)
    page = operator.get(f"{LIST}?q=").content.decode()
    assert "3 of 5 locks, those with the most waiters" in page
    assert len(ticks(operator.get(f"{HOST}?host=web-2"))) == 1


def test_a_long_key_is_found_by_its_words_and_by_its_path(contend, operator):
    long = "import/" + "x" * 373
    for key in ("k0", "k1", long):
        contend(key)
    for query in ("?q=IMPORT xxx", "?path=import/"):
        assert [lock.key for lock in operator.get(LIST + query).context["cl"].result_list] == [long]


def test_an_unreadable_lock_offers_the_commands_that_help(zoo, operator):
    path = f"{zoo.base}/odd/strange-0000000001"
    zoo.client.create(path, b"", makepath=True)
    try:
        page = operator.get(f"{LIST}odd/change/").content.decode()
    finally:
        zoo.client.delete(f"{zoo.base}/odd", recursive=True)
    assert_shows(page, f"get -s {path}<", f"delete {path}<", hides=["zklock-queue", "more behind", "Set limit"])
    assert_shows(page, hides=["for maintenance"])


def test_the_new_holder_is_named_after_a_refused_break(zoo, contend, operator):
    """Nothing is ticked, the reason is empty, and the first button leads back, so a second Enter breaks nothing."""
    first, _second = contend("k", 1), contend("k", 2)
    target = ticks(operator.get(f"{LIST}break/?key=k"))[0]
    zoo.client.delete(first)
    response = operator.post(BREAK, {"target": target, "reason": "it hangs", "break": "1"})
    page = response.content.decode()
    assert response.status_code == 409
    assert_shows(page, "k now belongs to web-2 · pid 72, for ", "Break THIS one only if you mean it.")
    assert_shows(page, hides=['type="hidden" name="target"', " checked>", "it hangs"])
    assert page.index(">Back</a>") < page.index('value="Break the lock"')
