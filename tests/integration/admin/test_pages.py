"""The pages of the locks: contents, permissions, and behaviour while ZooKeeper does not answer."""

import re

import pytest
from django.contrib.auth.models import User
from django.test import Client, override_settings
from support import adminsite
from support.adminsite import LIST, user_with
from support.faults import within
from support.texts import assert_shows
from support.zoo import eventually

from django_zklock import zk_lock
from django_zklock.dashboard.acts import ACTS
from django_zklock.report.formatting import process_of

pytestmark = pytest.mark.django_db

PAGES = [
    LIST,
    f"{LIST}a/change/",
    f"{LIST}a/history/",
    f"{LIST}act/break/?key=a",
    f"{LIST}act/ask/?key=a",
    f"{LIST}act/end/?key=a",
    f"{LIST}act/hold/",
    f"{LIST}act/limit/?key=a",
    f"{LIST}data.json",
]


@pytest.fixture
def queues(contend):
    task = {"task": "shop.tasks.charge", "id": "91ab"}
    return [
        contend("orders/42", 1, what="shop.tasks.charge", about=task, session_timeout=10_000),
        contend("orders/42", 2, what="POST /refund", about={"request": "POST /refund"}),
        contend("orders/42", 3),
        contend("invoice", 4, what="GET /invoice", about={"request": "GET /invoice"}),
    ]


def keys(client, query="?q="):
    response = client.get(LIST + query)
    assert response.status_code == 200, response
    return [lock.key for lock in response.context["cl"].result_list]


def test_the_list_shows_holders_and_waiters(zoo, queues, viewer):
    response = viewer.get(f"{LIST}?q=")
    assert_shows(response.content.decode(), "orders/42", "web-1 · pid 71", "shop.tasks.charge")
    assert response.context["snapshot"].connection.state == "connected"
    assert response.context["totals"] == {"shown": 2, "held": 2, "kept": 0, "contended": 1, "waiting": 2}


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("?q=ORDERS", ["orders/42"]),
        ("?q=web-4", ["invoice"]),
        ("?q=91ab charge", ["orders/42"]),
        ("?q=orders web-4", []),
        ("?state=contended", ["orders/42"]),
        ("?host=web-1", ["orders/42"]),
        ("?o=1", ["invoice", "orders/42"]),
        ("?o=-1", ["orders/42", "invoice"]),
        ("?o=-5", ["invoice", "orders/42"]),
        ("?o=4.6", ["orders/42", "invoice"]),
    ],
)
@pytest.mark.usefixtures("queues")
def test_the_list_is_searched_filtered_and_sorted(operator, query, expected):
    assert keys(operator, query) == expected


def test_the_list_is_paginated(contend, viewer, monkeypatch):
    monkeypatch.setattr("django_zklock.admin.LockAdmin.list_per_page", 2)
    for number in range(5):
        contend(f"k{number}", number)
    assert keys(viewer) == ["k0", "k1"]
    assert keys(viewer, "?p=3") == ["k4"]
    assert len(keys(viewer, "?all=")) == 5


def test_the_list_queries_the_database_for_the_user_only(
    zoo, queues, viewer, django_assert_max_num_queries, monkeypatch
):
    """Session, user and permissions."""
    monkeypatch.setattr("django_zklock.inspection.info.GRANT_WRITTEN_AFTER", 0.0)  # how long these last is not known
    viewer.get(f"{LIST}?q=")
    with django_assert_max_num_queries(99) as captured:
        viewer.get(LIST + "?_facets=True&q=o&state=held")
    queries = [query["sql"] for query in captured.captured_queries]
    assert (len(queries) <= 4, "zklock_lock" in str(queries)) == (True, False), queries


def test_the_page_of_a_lock_shows_holder_queue_and_reason(zoo, queues, viewer):
    response = viewer.get(f"{LIST}orders_2F42/change/")
    page = response.content.decode()
    assert_shows(page, "web-1 · pid 71 has held it for", "2 callers wait.")
    token = zoo.client.exists(queues[0]).czxid
    assert f"<code>{token}</code>" in page
    lock = response.context["lock"]
    waiters = [(row.number, process_of(row.info)) for row in lock.rows[1:]]
    assert waiters == [(1, "web-2 · pid 72"), (2, "web-3 · pid 73")]
    assert queues[0].rpartition("/")[0] in page


@pytest.mark.parametrize("key", ["_2Fa", "a_2F_2Fb", "a_2F..", "%21waiting", "a%1B", "a_2F%21x", "a_0A"])
def test_an_invalid_key_has_no_page(zoo, viewer, key):
    assert viewer.get(f"{LIST}{key}/change/").status_code == 302


def test_admin_links_are_shown(zoo, queues, viewer):
    links = {"Flower": "https://flower/task/{id}", "Other": "/x/{nothing}"}
    with override_settings(ZKLOCK={"URL": zoo.url(), "ADMIN_LINKS": links}):
        page = viewer.get(f"{LIST}orders_2F42/change/").content.decode()
    assert_shows(page, 'href="https://flower/task/91ab"', hides=["Other"])


@pytest.mark.parametrize("page", PAGES)
def test_every_page_needs_a_login_and_the_permission(zoo, page):
    stranger = Client().get(page)
    assert (stranger.status_code, "/login/" in stranger["Location"]) == (302, True)
    nobody = user_with()
    assert nobody.get(page).status_code == 403
    assert nobody.post(page, {"action": "break_selected", "_selected_action": ["a"]}).status_code == 403


@pytest.mark.parametrize("act", ACTS)
def test_each_act_has_its_own_permission(zoo, queues, act):
    """To see locks is needed, too, and that alone is not enough."""
    others = {other.permission for other in ACTS.values()} - {ACTS[act].permission}
    for client in (user_with("view_lock", *sorted(others)), user_with(ACTS[act].permission)):
        assert client.get(f"{LIST}act/{act}/").status_code == 403
        assert client.post(f"{LIST}act/{act}/", {act: "1", "target": "x", "reason": "y"}).status_code == 403
    assert zoo.children("orders/42")


def test_an_unknown_act_has_no_page(zoo, operator):
    assert operator.get(f"{LIST}act/explode/").status_code == 403


def test_a_viewer_is_offered_no_action(zoo, queues, viewer):
    for path in ("?q=", "", "orders_2F42/change/", "free/change/"):
        page = viewer.get(LIST + path).content.decode()
        assert_shows(page, hides=["break_selected", "/act/"])
    forged = viewer.post(LIST, {"action": "break_selected", "_selected_action": ["orders/42"]})
    assert "rows" not in (forged.context or {})


@pytest.mark.parametrize("page", ["add/", "a/delete/"])
def test_locks_cannot_be_added_or_deleted_in_the_admin(zoo, operator, page):
    assert operator.get(LIST + page).status_code == 403
    assert operator.post(LIST + page, {"key": "x"}).status_code == 403
    assert operator.post(f"{LIST}a/change/", {"key": "x"}).status_code == 405


def test_the_list_is_available_as_json(zoo, queues, viewer):
    """Numbers that JavaScript would round are strings."""
    locks = {lock["key"]: lock for lock in viewer.get(f"{LIST}data.json").json()["locks"]}
    (holder,) = locks["orders/42"]["holders"]
    token = str(zoo.client.exists(queues[0]).czxid)
    assert (locks["orders/42"]["waiting"], holder["about"]["id"], holder["token"]) == (2, "91ab", token)


def test_links_stay_within_their_admin_site(zoo, queues, operator):
    for page in ("", "?host=web-1", "orders_2F42/change/", "act/break/?key=orders/42", "act/hold/", "act/limit/"):
        text = operator.get(f"/own/zklock/lock/{page}").content.decode()
        assert_shows(text, "/own/zklock/lock/", hides=["/admin/zklock/lock/"])


@pytest.mark.parametrize("page", ["", "orders_2F42/change/", "act/break/?key=orders/42", "act/hold/"])
def test_pages_have_no_inline_scripts_or_styles(zoo, queues, operator, page):
    """A strict Content-Security-Policy needs no exception."""
    text = operator.get(LIST + page).content.decode().lower()
    assert_shows(text, hides=[" style=", "<style", " onclick=", "<script>"])


@pytest.mark.timed
def test_without_zookeeper_the_pages_answer_in_time(zoo, operator):
    with zoo.configured(hosts="127.0.0.1:1"):
        for page in ("/admin/", f"{LIST}a/change/", LIST):
            with within(3):
                response = operator.get(page)
            assert response.status_code == 200
            assert ("ZooKeeper does not answer" in response.content.decode()) is (page != "/admin/")
        assert operator.get(f"{LIST}data.json").json()["problem"]


@pytest.mark.timed
@pytest.mark.usefixtures("queues")
def test_without_zookeeper_the_last_state_is_shown_with_its_age(single, operator):
    assert keys(operator) == ["orders/42", "invoice"]
    single.servers[0].pause()
    try:
        eventually(lambda: operator.get(f"{LIST}?q=").context["snapshot"].age > 1)
        response = operator.get(f"{LIST}?q=")
        assert [lock.key for lock in response.context["cl"].result_list] == ["orders/42", "invoice"]
        assert "Age of this state:" in response.content.decode()
        page = operator.get(f"{LIST}orders_2F42/change/").content.decode()
        assert_shows(page, "web-1", "Age of this state:", hides=["/act/"])
    finally:
        single.servers[0].resume()
    eventually(lambda: "act/break/" in operator.get(f"{LIST}orders_2F42/change/").content.decode())


def test_the_index_lists_locks_only_with_the_permission(zoo, viewer):
    assert LIST in viewer.get("/admin/").content.decode()
    assert LIST not in user_with().get("/admin/").content.decode()


def test_a_deadlock_that_is_over_is_not_shown_for_long(zoo, contend, viewer):
    """Else somebody breaks a second lock. The waits of other locks may be older."""
    paths = [contend(key, number, owner=number) for key, number in (("a", 1), ("b", 2), ("a", 2), ("b", 1))]
    assert "Break one of them: its work" in viewer.get(f"{LIST}a/change/").content.decode()
    zoo.client.delete(paths[1])
    eventually(lambda: "Break one of them: its work" not in viewer.get(f"{LIST}a/change/").content.decode(), 5)


FORMS = [f"{LIST}a/change/", *(f"{LIST}act/{name}/?key=a" for name in ("break", "hold", "limit"))]
THEME = """{% extends "admin/base_site.html" %}
{% block breadcrumbs %}<b>trail of the theme</b>{% endblock %}
{% block content %}<form class="themed">
{% block field_sets %}
{% for fieldset in adminform %}{% include "admin/includes/fieldset.html" %}{% endfor %}
{% endblock %}
{% block submit_buttons_bottom %}{% endblock %}
</form>{% endblock %}
"""


@pytest.fixture
def client(zoo):
    client = Client()
    client.force_login(User.objects.create_superuser("root"))
    with zk_lock("a"):
        yield client


def breadcrumbs(page):
    """Return the tags of the breadcrumbs, without what they say."""
    _, _, rest = page.partition('<nav aria-label="Breadcrumbs">')
    tags = re.findall(r'<(/?\w+)(?:[^>]*?(class="[^"]*"|aria-current="[^"]*"))?[^>]*>', rest.partition("</nav>")[0])
    assert tags
    return [" ".join(tag).strip() for tag in tags if "bdi" not in tag[0]]


def test_breadcrumbs_and_tools_are_as_in_a_change_form(client):
    user = User.objects.get()
    stock = client.get(f"/admin/auth/user/{user.pk}/change/").content.decode()
    for path in FORMS:
        assert breadcrumbs(client.get(path).content.decode()) == breadcrumbs(stock), path
    texts = (client.get(FORMS[0]).content.decode(), stock)
    assert len({text.index('class="object-tools"') < text.index('id="content-main"') for text in texts}) == 1


@pytest.mark.parametrize("path", FORMS)
def test_pages_fill_the_change_form_of_a_theme(client, path):
    (engine,) = adminsite.SETTINGS["TEMPLATES"]
    loaders = [
        ("django.template.loaders.locmem.Loader", {"admin/change_form.html": THEME}),
        "django.template.loaders.app_directories.Loader",
    ]
    themed = {**engine, "APP_DIRS": False, "OPTIONS": {**engine["OPTIONS"], "loaders": loaders}}
    with override_settings(TEMPLATES=[themed]):
        page = client.get(path).content.decode()
    assert "trail of the theme" in page
    form = page.partition('<form class="themed">')[2].partition("</form>")[0]
    for text in ["In ZooKeeper"] if "change" in path else ['name="reason"', 'type="submit"']:
        assert text in form
