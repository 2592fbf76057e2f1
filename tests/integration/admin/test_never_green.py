"""Over what could not be read, nothing says that all is well, that a lock is free, or that there is none."""

import contextlib
import re

import pytest
from django.utils.html import strip_tags
from kazoo.security import OPEN_ACL_UNSAFE, make_acl, make_digest_acl
from support.adminsite import LIST
from support.browser.pages import address
from support.locking import ending
from support.proxy import GET_CHILDREN, GET_DATA, MULTI_READ, Proxy, with_failed_reads

from django_zklock import inspection
from django_zklock.inspection import scan

pytestmark = [pytest.mark.django_db, pytest.mark.timeout(120)]

KEY = "stock/berlin"
OTHERS = [
    make_digest_acl("admin", "secret", all=True),
    make_acl("world", "anyone", create=True, delete=True, write=True),
]
"""All rights but to read."""
ONE_LOCK = ("show", "page of the lock")
"""They have read all that they say."""
CODES = [-1, -8, -102, -125, -200]
"""A failure, a wrong request, no right, a full quota, and a code of a later release."""
GREEN = ("Nothing needs attention", "No lock is held", "All locks are free", "is free", "0 locks", "Free")


@pytest.fixture
def admin(zoo):
    """Let the test see and restore what nobody else may read."""
    zoo.use_own_client().add_auth("digest", "admin:secret")


@pytest.fixture
def held(zoo, admin, contend):
    """Have a lock with a holder and a waiter of other processes; return the paths of what a look reads."""
    holder, waiter = contend(KEY, 1, waited=1), contend(KEY, 2)
    directory = holder.rpartition("/")[0]
    return {
        "the root of locks": zoo.base,
        "a directory above keys": f"{zoo.base}/stock",
        "a queue": directory,
        "the holder": holder,
        "the waiter": waiter,
    }


def words(html):
    body = re.sub(r"(?s)<(script|style|template|select)\b.*?</\1>", " ", html)
    return " ".join(strip_tags(body).split())


def shown(operator):
    """Return what each place says, with its status: 0 or 200 if it is content."""
    commands = ("status",), ("list",), ("show", "--", KEY), ("doctor",)
    said = {}
    for command in commands:
        status, printed, error = ending(*command)
        said[" ".join(command).removesuffix(f" -- {KEY}")] = status, f"{printed} {error}"
    report = operator.get("/incidents.json")
    said["incidents.json"] = report.status_code, report.json()["verdict"]
    page = operator.get(LIST)
    said["page"] = int("zklock-calm" not in page.content.decode()), words(page.content.decode())
    lock = operator.get(address(KEY))
    said["page of the lock"] = 1, words(lock.content.decode())
    return said


def assert_not_green(operator, *, except_for=()):
    wrong = {}
    for name, (status, text) in shown(operator).items():
        green = [word for word in GREEN if re.search(rf"\b{word}\b", text)]
        if (status in (0, 200) or green) and name not in except_for:
            wrong[name] = status, green, text[:300]
    assert not wrong


@contextlib.contextmanager
def denied(zoo, path):
    zoo.client.set_acls(path, OTHERS)
    try:
        yield
    finally:
        zoo.client.set_acls(path, OPEN_ACL_UNSAFE)


@pytest.mark.parametrize("part", ["the root of locks", "a directory above keys", "a queue", "the holder"])
def test_a_denied_read_is_no_calm(zoo, operator, held, part):
    with denied(zoo, held[part]):
        assert_not_green(operator, except_for=() if part in {"a queue", "the holder"} else ONE_LOCK)


@pytest.mark.parametrize("opcode", [GET_CHILDREN, GET_DATA], ids=["lists", "reads"])
@pytest.mark.parametrize("code", CODES)
def test_a_refused_request_is_no_calm(zoo, operator, held, opcode, code):
    with Proxy(zoo.address) as proxy, zoo.configured(proxy.address):
        inspection.snapshot(max_age=0, reply_timeout=10)  # the page must not use this one again
        for _ in range(300):
            proxy.alter_reply(MULTI_READ, with_failed_reads(opcode, code))
        try:
            assert_not_green(operator)
        finally:
            proxy.heal()


def test_silence_is_no_calm(zoo, operator, held):
    with Proxy(zoo.address) as proxy, zoo.configured(proxy.address):
        inspection.snapshot(max_age=0)
        proxy.hang = True
        try:
            assert_not_green(operator)
        finally:
            proxy.heal()


def test_data_that_a_limit_cuts_is_no_calm(operator, held, monkeypatch):
    """A deadlock may be in the data of a znode."""
    monkeypatch.setattr(scan, "MAX_HELD", 10)
    assert_not_green(operator, except_for=ONE_LOCK)
