"""Texts of others, in every field that anybody can write, stay texts on every page and in every answer to a form."""

import contextlib
import html.parser
import itertools
import json
from dataclasses import fields
from datetime import timedelta
from importlib.util import find_spec
from urllib.parse import parse_qsl, quote, urlencode, urljoin, urlsplit

import pytest
from django.conf import settings
from django.contrib.auth.models import Permission, User
from django.db import models
from django.test import Client, override_settings
from django.utils import timezone
from kazoo.exceptions import NoNodeError
from support.zoo import eventually

from django_zklock.contrib.events.models import Event
from django_zklock.core.queue import nodes
from django_zklock.core.queue.markers import limit_marker
from django_zklock.core.queue.operator_hold import RESERVATIONS, guid_of_task

pytestmark = [pytest.mark.django_db, pytest.mark.timeout(240)]

# It ends an attribute in quotes or without, and then a tag. Each part of it that becomes HTML has the attribute.
EVIL = """'" evil=1 ><script evil=1></script>"""
UNPRINTABLE = "\x1b\u202e\x00"
KEY = EVIL.replace("/", "")  # no slash, so that the key has one segment
KEYS = [KEY, f"{KEY}/b", f"reads/{KEY}", f"permits/{KEY}", f"ended/{KEY}", f"foreign/{KEY}", f"deadlock/{KEY}"]
GUID = nodes.new_guid(nodes.Mark.OWN)
THEMES = ["admin", *(["themed"] if find_spec("unfold") else [])]


class Tags(html.parser.HTMLParser):
    """The tags of a page that a hostile text has made, or has changed."""

    def __init__(self, page):
        super().__init__()
        self.evil = []
        self.links = []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        names = dict(attrs)
        if any("evil" in name for name in (tag, *names)):
            self.evil.append(str(self.get_starttag_text()))
        for name in ("href", "src", "action", "formaction"):
            if (names.get(name) or "").lower().startswith(("javascript:", "data:text")):
                self.evil.append(str(self.get_starttag_text()))
        if tag == "a" and names.get("href"):
            self.links.append(str(names["href"]))

    def handle_data(self, data):
        if self.cdata_elem in self.CDATA_CONTENT_ELEMENTS and "evil" in data:  # as in a script, nothing is escaped
            self.evil.append(data)


def assert_harmless(response):
    """Fail if a text has become a tag or an attribute, or does not print. In JSON, it can only be a text."""
    assert response.status_code < 500, response.content
    for name, value in response.headers.items():
        assert "evil=1 >" not in value, name
    kind = response.headers.get("Content-Type", "")
    text = response.content.decode()
    if kind == "application/json":
        text = json.dumps(response.json(), ensure_ascii=False)
    assert not set(text) & set(UNPRINTABLE)
    if not kind.startswith("text/html"):
        assert kind.partition(";")[0] in ("", "application/json"), kind
        return Tags("")
    tags = Tags(text)
    assert tags.evil == []
    return tags


def payload(**more):
    """Return a payload with the text in each field that can have one, also in those of later releases."""
    text = EVIL + UNPRINTABLE
    texts = {field.name: text for field in fields(nodes.Payload) if field.type == "str"}
    about = dict.fromkeys(("task", "id", "queue", "retries", "request", "trace", "span", "message", text), text)
    request = {"by": EVIL, "reason": EVIL, "at": EVIL}
    numbers = {"version": 1, "pid": 7, "owner": 3, "session_timeout": 9000, "lasts": ""}
    return json.dumps({**texts, "about": about, "release_request": request, **numbers, **more}).encode()


def join(zoo, key, name, data, **more):
    options = {"ephemeral": True, "sequence": True, "makepath": True, **more}
    path = zoo.client.create(f"{zoo.base}/{key}/{name}", data, **options)
    return path


def contender(zoo, key, kind=nodes.Kind.LOCK, **more):
    guid = nodes.new_guid(nodes.Mark.OWN)
    return join(zoo, key, nodes.prefix(guid, kind), payload(guid=guid, **more))


def hostile_row(model, **values):
    """Store a row with the text in each column that can have it."""
    columns = [field for field in model._meta.fields if isinstance(field, (models.CharField, models.TextField))]
    texts = {field.name: EVIL[: field.max_length] for field in columns}
    model._default_manager.create(**{**texts, **values})


@pytest.fixture
def hostile(zoo, contend):
    """Fill each kind of znode and each table."""
    paths = [contender(zoo, key) for key in KEYS[:2] * 2]
    paths += [contender(zoo, KEYS[2], nodes.Kind.READ, lasts="leader") for _ in range(2)]
    paths += [contender(zoo, KEYS[3], nodes.Kind.PERMIT, limit=2 + number) for number in range(3)]
    by = json.dumps({"by": EVIL, "reason": EVIL, "id": EVIL}).encode()
    paths.append(join(zoo, KEYS[3], limit_marker(2), by, ephemeral=False))
    for key, mark in ((KEYS[4], ""), (f"minimum/{KEY}", "minimum")):
        guid = nodes.new_guid(nodes.Mark.OPERATOR)
        about = {"operator": EVIL, "reason": EVIL, "seconds": "600", **({mark: "yes"} if mark else {})}
        paths.append(join(zoo, key, nodes.prefix(guid), payload(guid=guid, about=about), ephemeral=False))
    paths.append(join(zoo, KEYS[5], nodes.prefix(GUID, compat="kazoo"), EVIL.encode()))
    paths.append(join(zoo, f"unreadable/{KEY}", KEY, EVIL.encode()))
    texts = {"host": EVIL, "what": EVIL, "thread": EVIL, "template": EVIL, "about": {"task": EVIL, "id": EVIL}}
    for key, owner in ((KEYS[6], 1), ("other", 2), (KEYS[6], 2), ("other", 1)):
        contend(key, owner, owner=owner, **texts)
    guid = guid_of_task(EVIL)
    about = {"operator": EVIL, "reason": EVIL, "seconds": "600", "id": EVIL}
    reserved = f"{RESERVATIONS}/task/{KEY}/{KEY}"
    paths.append(join(zoo, reserved, nodes.prefix(guid), payload(guid=guid, about=about), ephemeral=False))
    now = timezone.now()
    for outcome in (*Event.OUTCOMES, EVIL[:16]):
        for key, token in ((KEY, 5), (KEYS[2], 6)):
            at = now - timedelta(seconds=60)
            hostile_row(Event, key=key, outcome=outcome, at=at, pid=7, token=token, held=1.0, waited=1.0)
    yield
    for path in paths:
        with contextlib.suppress(NoNodeError):  # some were broken
            zoo.client.delete(path)


@pytest.fixture(params=THEMES)
def lock_list(request):
    """Return the address of the list, in each theme."""
    links = {"Task": "https://flower/{id}", "Host": "/hosts/{host}?{what}"}
    apps = ["unfold.apps.BasicAppConfig"] if request.param == "themed" else []
    urls = "support.themedsite" if apps else "support.adminsite"
    zklock = {**settings.ZKLOCK, "ADMIN_LINKS": links}
    with override_settings(INSTALLED_APPS=[*apps, *settings.INSTALLED_APPS], ROOT_URLCONF=urls, ZKLOCK=zklock):
        yield f"/{request.param}/zklock/lock/"


@pytest.fixture
def evil_olga(language):
    """Return the browser of an operator with that name, which sends the text in each header that pages may show."""
    user = User.objects.create_user(EVIL, first_name=EVIL, is_staff=True)
    user.user_permissions.set(Permission.objects.filter(content_type__app_label="zklock"))
    names = ("User-Agent", "Referer", "X-Forwarded-For", "X-Forwarded-Host", "X-Request-Id", "HX-Request")
    client = Client(headers={"Accept-Language": language, **dict.fromkeys(names, EVIL)})
    client.force_login(user)
    return client


def crawl(client, start):
    """Follow all links below the list, but one only of those that differ in their values."""
    waiting = [start, *(f"{start}{page}" for page in ("?q=", "data.json"))]
    seen = set()
    for url in waiting:
        tags = assert_harmless(client.get(url))
        for link in tags.links:
            target = urljoin(url, link)
            split = urlsplit(target)
            shape = (split.path, *sorted(name for name, _value in parse_qsl(split.query)))
            if split.path.startswith(start) and not split.netloc and len(shape) < 4 and shape not in seen:
                seen.add(shape)
                waiting.append(target)
    return waiting


PARAMETERS = ("q", "host", "state", "o", "p", "all", "key", "target")
ACTS = tuple(f"act/{name}/" for name in ("ask", "break", "end", "hold", "limit"))
PAGES = ("", *ACTS)
ODD = (EVIL, f"{EVIL}\r\n{EVIL}", "javascript:evil()")
FORMS = [
    ("", {"action": "break_selected", "_selected_action": KEYS}),
    ("", {"action": "request_release_of_selected", "_selected_action": KEYS}),
    ("", {"action": EVIL, "_selected_action": EVIL}),
    ("act/break/?" + urlencode({"key": KEYS}, doseq=True), {"break": "1", "reason": EVIL, "target": EVIL}),
    ("act/hold/", {"hold": "1", "key": KEY, "minutes": EVIL, "wait": EVIL, "reason": EVIL}),
    ("act/hold/", {"hold": "1", "key": KEY, "minutes": "1", "wait": "0", "reason": EVIL}),
    ("act/hold/", {"hold": "1", "key": f"free/{KEY}", "minutes": "1", "wait": "0", "reason": EVIL}),
    ("act/limit/", {"limit": "1", "key": KEY, "permits": EVIL, "reason": EVIL}),
    ("act/limit/", {"limit": "1", "key": KEYS[3], "permits": "3", "reason": EVIL}),
    ("act/limit/", {"limit": "1", "key": f"free/{KEY}", "permits": "3", "reason": EVIL}),
]


@pytest.mark.parametrize(
    "language",
    [
        "en",
        pytest.param("de", marks=pytest.mark.chaos),  # the templates are the same
        pytest.param("ar", marks=pytest.mark.chaos),
    ],
)
@pytest.mark.usefixtures("hostile")
def test_texts_of_others_are_texts_on_all_pages_and_in_all_answers(zoo, lock_list, evil_olga, language):
    eventually(lambda: "evil=1" in evil_olga.get(lock_list).content.decode())
    paths = {urlsplit(page).path for page in crawl(evil_olga, lock_list)}
    assert {lock_list + page for page in PAGES} <= paths, "each page was seen"
    assert sum(path.endswith("/change/") for path in paths) >= len(KEYS)
    queries = [f"{page}?{urlencode(dict.fromkeys(PARAMETERS, value))}" for page in PAGES for value in ODD]
    queries += [f"?{urlencode({'q': '', name: EVIL})}" for name in PARAMETERS]
    for query in (*queries, f"{quote(EVIL, safe='')}/change/"):
        assert_harmless(evil_olga.get(lock_list + query, follow=True))
    for page, values in FORMS:
        assert_harmless(evil_olga.post(lock_list + page, values, follow=True))
    for key, name in itertools.product(KEYS, ("ask", "break", "end")):
        act(evil_olga, name, f"{lock_list}act/{name}/?{urlencode({'key': key})}")
    crawl(evil_olga, lock_list)
    assert_harmless(evil_olga.get(lock_list.removesuffix("zklock/lock/")))  # the latest actions of this user


def act(client, name, page):
    """Submit the form of an act for all holders of a lock."""
    targets = [row.target for _lock, row, _is_ticked in client.get(page).context["rows"]]
    assert_harmless(client.post(page, {name: "1", "target": targets, "reason": EVIL}, follow=True))
