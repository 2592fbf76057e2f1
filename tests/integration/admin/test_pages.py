"""The locks in Django's admin: what the pages show, who may see them, and what becomes of them without ZooKeeper."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client, override_settings
from support.adminsite import user_with
from support.faults import within
from support.zoo import Zoo

from django_zklock import zk_lock
from django_zklock.queue import nodes
from django_zklock.queue.nodes import Payload
from django_zklock.testing.ensemble import Ensemble, free_ports

pytestmark = [pytest.mark.zookeeper, pytest.mark.django_db]

LIST = "/admin/zklock/lock/"
GUID = "aaaaaaaa-0000-4000-8000-00000000000%d"
PAGES = [
    LIST,
    f"{LIST}a/change/",
    f"{LIST}a/history/",
    f"{LIST}break/?key=a",
    f"{LIST}hold/",
    f"{LIST}limit/?key=a",
    f"{LIST}data.json",
]
HOSTILE = '<script>alert("x")</script>\x1b[31m\u202e\x00'


@pytest.fixture
def viewer() -> Client:
    return user_with("view_lock")


@pytest.fixture
def operator() -> Client:
    return user_with("view_lock", "break_lock", "hold_lock", "limit_lock", "request_release_lock")


def contend(zoo: Zoo, key: str, number: int, **more: Any) -> str:
    """Have a contender of a process that is not there; return the path of its node."""
    guid = GUID % number
    fields: dict[str, Any] = {"host": f"web-{number}", "pid": 70 + number, "thread": "MainThread", "what": "", **more}
    payload = Payload(guid=guid, since="", template=key, **fields)
    path: str = zoo.client.create(
        f"{zoo.base}/{key}/{nodes.prefix(guid)}", payload.encode(), ephemeral=True, sequence=True, makepath=True
    )
    return path


@pytest.fixture
def queues(zoo: Zoo) -> Iterator[list[str]]:
    """A contended lock of a Celery task, and one of a view."""
    task = {"task": "shop.tasks.charge", "id": "91ab"}
    paths = [
        contend(zoo, "orders/42", 1, what="shop.tasks.charge", about=task),
        contend(zoo, "orders/42", 2, what="POST /refund", about={"request": "POST /refund"}),
        contend(zoo, "orders/42", 3),
        contend(zoo, "invoice", 4, what="GET /invoice", about={"request": "GET /invoice"}),
    ]
    yield paths
    for path in paths:
        if zoo.client.exists(path):
            zoo.client.delete(path)


def keys(client: Client, query: str = "") -> list[str]:
    response = client.get(LIST + query)
    assert response.status_code == 200, response
    return [lock.key for lock in response.context["cl"].result_list]


def test_list_shows_who_holds_and_who_waits(zoo: Zoo, queues: list[str], viewer: Client) -> None:
    """Each lock is a row with its holder, what it does, and how many wait."""
    page = viewer.get(LIST).content.decode()
    assert "orders/42" in page
    assert "web-1 · pid 71" in page
    assert "shop.tasks.charge" in page
    strip = viewer.get(LIST).context["zklock"]
    assert (strip.state, strip.held, strip.contended, strip.waiting) == ("connected", 2, 1, 2)
    assert strip.longest_wait


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("?q=ORDERS", ["orders/42"]),
        ("?q=web-4", ["invoice"]),
        ("?q=91ab charge", ["orders/42"]),
        ("?q=orders web-4", []),
        ("?state=contended", ["orders/42"]),
        ("?state=held", ["invoice", "orders/42"]),
        ("?state=long", []),
        ("?state=operator", []),
        ("?kind=lock", ["invoice", "orders/42"]),
        ("?kind=read-write", []),
        ("?source=celery", ["orders/42"]),
        ("?source=view", ["invoice"]),
        ("?source=code", []),
        ("?host=web-1", ["orders/42"]),
        ("?host=web-9", []),
        ("?o=1", ["invoice", "orders/42"]),
        ("?o=-1", ["orders/42", "invoice"]),
        ("?o=5", ["orders/42", "invoice"]),
        ("?o=-5", ["invoice", "orders/42"]),
        ("?o=3.4.6", ["orders/42", "invoice"]),
        ("?key__startswith=inv", ["invoice"]),
    ],
)
def test_list_is_searched_filtered_and_sorted(
    zoo: Zoo, queues: list[str], operator: Client, query: str, found: list[str]
) -> None:
    """What the change list of the admin offers works on locks, too."""
    assert keys(operator, query) == found


@pytest.mark.parametrize("query", ["?key__regex=x", "?holders=1", "?pk__gt=1"])
def test_lookups_that_mean_nothing_lead_back_to_the_list(
    zoo: Zoo, queues: list[str], viewer: Client, query: str
) -> None:
    """What somebody writes into the address is no error of the server."""
    response = viewer.get(LIST + query)
    assert response.status_code == 302
    assert viewer.get(response["Location"]).status_code == 200


def test_list_is_cut_into_pages(zoo: Zoo, viewer: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page has so many rows, and the next one goes on."""
    monkeypatch.setattr("django_zklock.admin.LockAdmin.list_per_page", 2)
    paths = [contend(zoo, f"k{number}", number) for number in range(5)]
    assert keys(viewer) == ["k0", "k1"]
    assert keys(viewer, "?p=3") == ["k4"]
    assert len(keys(viewer, "?all=")) == 5
    for path in paths:
        zoo.client.delete(path)


def test_list_asks_the_database_for_nothing_but_its_user(
    zoo: Zoo, queues: list[str], viewer: Client, django_assert_max_num_queries: Any
) -> None:
    """Session, user and permissions: no query is about locks, of which there is no table."""
    with django_assert_max_num_queries(4) as captured:
        viewer.get(LIST + "?_facets=True&q=o&state=held")
    assert "zklock_lock" not in str([query["sql"] for query in captured.captured_queries])


def test_detail_shows_holder_queue_and_reason(zoo: Zoo, queues: list[str], viewer: Client) -> None:
    """The page of a lock says who, what, since when, who waits, and why."""
    response = viewer.get(f"{LIST}orders_2F42/change/")
    page = response.content.decode()
    assert "web-1 · pid 71 has held it for" in page
    assert "2 waiters, first come" in page
    token = zoo.client.exists(queues[0]).czxid
    assert f"<code>{token}</code>" in page
    lock = response.context["lock"]
    assert [row.process for row in lock.waiters] == ["web-2 · pid 72", "web-3 · pid 73"]
    assert [row.behind for row in lock.waiters] == [0, 1]
    assert f"zkCli.sh -server {zoo.address} get -s {queues[0]}" in page


def test_a_free_lock_has_a_page_and_a_history(zoo: Zoo, viewer: Client) -> None:
    """Links from the history work when nobody holds the lock any more."""
    assert "Nobody holds this lock" in viewer.get(f"{LIST}gone/change/").content.decode()
    assert viewer.get(f"{LIST}gone/history/").status_code == 200


@pytest.mark.parametrize("key", ["_2Fa", "a_2F_2Fb", "a_2F..", "%21waiting", "a%1B", "a_2F%21x", "a_0A"])
def test_what_is_no_key_has_no_page(zoo: Zoo, viewer: Client, key: str) -> None:
    """Reserved places and paths that lead elsewhere are not asked for."""
    assert viewer.get(f"{LIST}{key}/change/").status_code == 302


def test_links_lead_to_other_pages(zoo: Zoo, queues: list[str], viewer: Client) -> None:
    """A template is filled with what the contender says, escaped; where a field is missing there is no link."""
    links = {"Flower": "https://flower/task/{id}", "Other": "/x/{nothing}"}
    with override_settings(ZKLOCK={"URL": zoo.url(), "ADMIN_LINKS": links}):
        page = viewer.get(f"{LIST}orders_2F42/change/").content.decode()
    assert 'href="https://flower/task/91ab"' in page
    assert "Other" not in page


@pytest.mark.parametrize("target", [f"{LIST}", f"{LIST}evil/change/", f"{LIST}break/?key=evil", f"{LIST}data.json"])
def test_hostile_nodes_are_shown_harmless(zoo: Zoo, operator: Client, target: str) -> None:
    """Whatever was written into a node, no markup of it and nothing that steers a terminal is on a page."""
    about = {"task": HOSTILE, "id": HOSTILE, HOSTILE: HOSTILE}
    path = contend(zoo, "evil", 1, host=HOSTILE, thread=HOSTILE, what=HOSTILE, about=about)
    try:
        response = operator.get(target)
    finally:
        zoo.client.delete(path)
    assert response.status_code == 200
    page = response.content.decode()
    if target.endswith("json"):
        page = json.dumps(json.loads(page), ensure_ascii=False)
    else:
        assert "<script>alert" not in page
    assert not any(char in page for char in "\x1b\u202e\x00")


@pytest.mark.parametrize("data", [b"{" * 10_000, b"x" * 1_000_000, b"\xff\xfe", b'{"guid": 1e999}', b""])
def test_nodes_that_nobody_can_read_are_rows_like_others(zoo: Zoo, viewer: Client, data: bytes) -> None:
    """A foreign or broken node is shown as that of another client."""
    path = zoo.client.create(
        f"{zoo.base}/odd/{nodes.prefix(GUID % 1)}", data, ephemeral=True, sequence=True, makepath=True
    )
    try:
        assert keys(viewer) == ["odd"]
        assert viewer.get(f"{LIST}odd/change/").status_code == 200
    finally:
        zoo.client.delete(path)


def test_a_name_that_nobody_knows_is_said(zoo: Zoo, viewer: Client) -> None:
    """A queue that cannot be read blocks its lock, and the page says so."""
    zoo.client.create(f"{zoo.base}/odd/strange-0000000001", b"", makepath=True)
    try:
        assert "Unreadable" in viewer.get(LIST).content.decode()
        assert "cannot be read" in viewer.get(f"{LIST}odd/change/").content.decode()
    finally:
        zoo.client.delete(f"{zoo.base}/odd", recursive=True)


@pytest.mark.parametrize("page", PAGES)
def test_every_page_is_refused_without_permission(zoo: Zoo, page: str) -> None:
    """Staff without the permission gets 403, by GET and by a forged POST."""
    nobody = user_with()
    assert nobody.get(page).status_code == 403
    assert nobody.post(page, {"action": "break_selected", "_selected_action": ["a"]}).status_code == 403


@pytest.mark.parametrize("page", PAGES)
def test_who_is_not_logged_in_is_sent_to_log_in(zoo: Zoo, page: str) -> None:
    """No page tells a stranger anything."""
    response = Client().get(page)
    assert response.status_code == 302
    assert "/login/" in response["Location"]


@pytest.mark.parametrize("page", ["break/", "hold/", "end-hold/", "limit/", "request-release/"])
def test_stepping_in_has_permissions_of_its_own(zoo: Zoo, queues: list[str], viewer: Client, page: str) -> None:
    """Who may see may not break or hold; nor may who is allowed to but may not see."""
    for client in (viewer, user_with("break_lock", "hold_lock", "limit_lock", "request_release_lock")):
        assert client.get(LIST + page).status_code == 403
        assert client.post(LIST + page, {"target": "x", "reason": "y"}).status_code == 403
    assert zoo.children("orders/42")


def test_a_viewer_is_offered_nothing_he_may_not_do(zoo: Zoo, queues: list[str], viewer: Client) -> None:
    """No action, no button; and a forged action does nothing."""
    page = viewer.get(LIST).content.decode()
    assert "break_selected" not in page
    assert "hold/" not in page
    detail = viewer.get(f"{LIST}orders_2F42/change/").content.decode()
    assert "/break/" not in detail
    assert "/hold/" not in detail
    assert "/request-release/" not in detail
    assert "/limit/" not in page + viewer.get(f"{LIST}free/change/").content.decode()
    forged = viewer.post(LIST, {"action": "break_selected", "_selected_action": ["orders/42"]})
    assert "/break/" not in forged.headers.get("Location", "")


@pytest.mark.parametrize("page", ["add/", "a/delete/"])
def test_nothing_is_added_or_deleted(zoo: Zoo, operator: Client, page: str) -> None:
    """The pages of the admin that would write to a table are closed to everybody."""
    assert operator.get(LIST + page).status_code == 403
    assert operator.post(LIST + page, {"key": "x"}).status_code == 403
    assert operator.post(f"{LIST}a/change/", {"key": "x"}).status_code == 405


def test_json_says_the_same(zoo: Zoo, queues: list[str], viewer: Client) -> None:
    """Other dashboards get the list as JSON; numbers that a browser would round are texts."""
    found = {lock["key"]: lock for lock in viewer.get(f"{LIST}data.json").json()["locks"]}
    lock = found["orders/42"]
    assert lock["waiting"] == 2
    assert lock["holders"][0]["about"]["id"] == "91ab"
    assert lock["holders"][0]["token"] == str(zoo.client.exists(queues[0]).czxid)


def test_json_for_programs_asks_for_the_permission(zoo: Zoo, viewer: Client) -> None:
    """The view for a project's own addresses answers 403, never with a page to log in."""
    assert Client().get("/locks.json").status_code == 403
    assert user_with().get("/locks.json").status_code == 403
    assert viewer.get("/locks.json").json()["problem"] == ""


def test_pages_work_in_a_site_of_another_name(zoo: Zoo, queues: list[str], operator: Client) -> None:
    """Links stay within the admin site that they are on."""
    for page in ("", "orders_2F42/change/", "break/?key=orders/42", "hold/"):
        text = operator.get(f"/own/zklock/lock/{page}").content.decode()
        assert "/own/zklock/lock/" in text
        assert "/admin/zklock/lock/" not in text


@pytest.mark.parametrize("page", ["", "orders_2F42/change/", "break/?key=orders/42", "hold/"])
def test_pages_have_nothing_inline(zoo: Zoo, queues: list[str], operator: Client, page: str) -> None:
    """No style, no handler and no script but in files: a strict policy needs no exception."""
    text = operator.get(LIST + page).content.decode().lower()
    assert " style=" not in text
    assert "<style" not in text
    assert " onclick=" not in text
    assert "<script>" not in text


def test_without_zookeeper_the_pages_answer_in_time(zoo: Zoo, operator: Client) -> None:
    """There is a banner, nothing fails, and nobody waits long; the index of the admin does not even ask."""
    with zoo.configured(hosts=f"127.0.0.1:{free_ports(1)[0]}"):
        for page in ("/admin/", LIST, f"{LIST}a/change/", f"{LIST}a/history/", f"{LIST}hold/"):
            with within(3):
                response = operator.get(page)
            assert response.status_code == 200
        assert "ZooKeeper does not answer." in operator.get(LIST).content.decode()
        assert operator.get(f"{LIST}break/?key=a").status_code == 503
        assert operator.get(f"{LIST}data.json").json()["problem"]


def test_what_was_seen_last_is_shown_with_its_age(
    single: Ensemble, zoo: Zoo, queues: list[str], viewer: Client
) -> None:
    """While ZooKeeper is away the last snapshot stays, and the page says how old it is."""
    assert keys(viewer) == ["invoice", "orders/42"]
    single.servers[0].pause()
    try:
        time.sleep(1.1)
        response = viewer.get(LIST)
        page = response.content.decode()
        assert [lock.key for lock in response.context["cl"].result_list] == ["invoice", "orders/42"]
        assert "This state is" in page
        assert response.context["zklock"].snapshot.age > 1
        assert "web-1" in viewer.get(f"{LIST}orders_2F42/change/").content.decode()
    finally:
        single.servers[0].resume()


def test_index_lists_the_locks_for_who_may_see_them(zoo: Zoo, viewer: Client) -> None:
    """The admin's index has the locks, and only for those."""
    assert LIST in viewer.get("/admin/").content.decode()
    assert LIST not in user_with().get("/admin/").content.decode()


def test_own_locks_are_shown_with_their_work(zoo: Zoo, viewer: Client) -> None:
    """A lock of this process says where it is."""
    with zk_lock("mine") as hold:
        lock = viewer.get(f"{LIST}mine/change/").context["lock"]
        assert (lock.holders[0].info.token, lock.holders[0].info.client) == (hold.token, "zklock")
    assert LogEntry.objects.count() == 0
