"""The first page and the frame say what is wrong and what to do; on the page of one lock, what helps comes first."""

import html
import re
from dataclasses import replace

import pytest
from support.adminsite import LIST, user_with
from support.browser.actors import Part, staged
from support.faults import within
from support.texts import assert_shows

from django_zklock import inspection, operations
from django_zklock.inspection.queries import MAX_WAITERS

pytestmark = pytest.mark.django_db

PAGES = {
    "": "Attention",
    "?q=": "Locks",
    "root/change/": "Locks",
    "act/break/?key=root": "Locks",
    "act/hold/?key=root": "Locks",
    "act/limit/?key=root": "Locks",
}
"""The pages by the tab to which they belong."""
CHECKOUT = Part.view("POST /checkout/", "shop.views.checkout", "web-1", 78)


@pytest.fixture
def stage(zoo):
    """Queues in which each holder that others wait for hangs."""
    with zoo.configured(DEFAULTS={"warn_after": 0.001}), staged(zoo) as stage:
        yield stage


def task(name, host, pid=7):
    return replace(Part.task(f"shop.tasks.{name}", host, pid), waited=1)


def page(client, path=""):
    """Return a page as it is now, without its tags' spaces."""
    inspection.snapshot(max_age=0.0)
    return html.unescape(" ".join(client.get(LIST + path).content.decode().split()))


def words(text):
    return re.sub(" +", " ", re.sub("<.*?>", "", text))


def chain(stage):
    """Let w1 hold root, and w2 hold mid and wait for root, and w3 hold leaf and wait for mid."""
    slow, refund, charge = task("slow", "w1"), task("refund", "w2"), task("charge", "w3")
    for key, part in (("root", slow), ("mid", refund), ("root", refund), ("leaf", charge), ("mid", charge)):
        stage.join_queue(key, part)
    stage.join_queue("leaf", Part("web-1", 5))


def deadlock(stage):
    there, back = task("move", "w3"), task("move", "w4")
    for key, part in (("a", there), ("b", back), ("b", there), ("a", back)):
        stage.join_queue(key, part)
    return there, back


def hang(stage, *waiters, key="stock"):
    stage.join_queue(key, Part("worker-1", 7, what="import", waited=1))
    for waiter in waiters:
        stage.join_queue(key, waiter)


def test_every_page_has_the_tabs_and_marks_its_own(stage, operator):
    chain(stage)
    for path, label in PAGES.items():
        text = page(operator, path)
        (tabs,) = re.findall(r'<nav class="zklock-tabs.*?</nav>', text)
        assert re.findall(r'aria-current="\w+">([\w ]+?)<', tabs) == [label], path
        assert "…" not in tabs, "acts are no tabs"
        assert 'href="/admin/zklock/lock/data.json">JSON</a>' in text.partition("</nav>")[2], path


def test_a_chain_is_one_card_with_a_tree(stage, operator):
    chain(stage)
    text = page(operator)
    assert text.count("<section") == 1
    assert "3 callers wait" in text
    tree = text.partition('<ul class="zklock-tree">')[2].partition("</ul>")[0]
    assert re.findall(r'zklock-depth-(\d)"><a [^>]*>(\w+)</a>', tree) == [("1", "mid"), ("2", "leaf")]
    assert re.findall(r"act/(\w+)/\?key=(\w+)", text) == [("ask", "root"), ("break", "root")]


def test_a_deadlock_is_a_row_for_each_holder(stage, operator):
    parts = deadlock(stage)
    text = page(operator)
    rows = re.findall("<tr>.*?</tr>", text.partition("<tbody>")[2].partition("</tbody>")[0])
    assert len(rows) == 2
    for row, part, holds in zip(rows, parts, "ab", strict=True):
        assert re.findall(r"act/(\w+)/\?key=(\w)", row) == [("break", holds)], "a request ends no deadlock"
        assert f"{part.host} · pid 7" in row
        identity = part.about["id"]
        assert f'title="{identity}">{identity[:8]}</span>' in row
    assert "Break…" not in page(user_with("view_lock"))


def test_the_card_of_a_hang_says_where_its_stack_will_be(stage, operator):
    hang(stage, CHECKOUT)
    text = page(operator)
    assert "At a request, worker-1 · pid 7 writes its stack to its log" in text
    assert re.findall(r"act/(\w+)/\?key=stock", text) == ["ask", "break"]


def test_callers_are_counted_by_their_work(stage, operator):
    """Two calls of a task are one work, whatever their ids are."""
    refunds = [Part.task("shop.tasks.refund", f"worker-{number}", 9) for number in (3, 4)]
    hang(stage, *[CHECKOUT] * 3, *refunds, Part("web-1"))
    text = words(page(operator))
    assert "Waiting: 3 × POST /checkout/, 2 × shop.tasks.refund, 1 × code without a name" in text


def test_callers_that_a_look_does_not_read_are_a_number(stage, operator):
    hang(stage, *[CHECKOUT] * (MAX_WAITERS + 1))
    assert f"Waiting: {MAX_WAITERS} × POST /checkout/, and 1 more" in words(page(operator))


def test_a_card_says_who_has_requested_the_release(stage, operator):
    hang(stage, CHECKOUT)
    operations.request_release("stock", by="anna", reason="deploy")
    assert "Asked by anna" in page(operator)


def test_the_text_of_the_live_region_does_not_change_with_the_time(stage, operator):
    """Screen readers would read it at each refresh."""
    hang(stage, CHECKOUT)
    live = re.compile(r'<strong role="status">(.*?)</strong>')
    assert live.findall(page(operator)) == ["1 thing needs attention."]


def test_a_calm_page_says_what_was_looked_at(zoo, operator):
    assert_shows(page(operator), "Nothing needs attention.", "1 of 1 servers", "No lock is held now.", "zklock-calm")
    with zoo.hold_elsewhere("stock"):
        assert_shows(page(operator), "1 of 1 locks", "zklock-calm", hides=["No lock is held now."])


@pytest.mark.timed
def test_without_zookeeper_nothing_is_offered(stage, zoo, operator):
    deadlock(stage)
    assert "act/break" in page(operator)
    with zoo.configured("127.0.0.1:1"), within(15):
        text = page(operator)
    assert "Start the servers that are down" in text
    assert_shows(text, hides=["Break…", "zklock-calm", "Hold a lock…", "Set limit…"])


def test_a_victim_leads_to_the_root_and_is_not_to_be_broken(stage, operator):
    root, middle = Part.task("shop.import", "worker-1", 1), Part.task("shop.refund", "worker-1", 2)
    for key, parts in (("root", (root, middle)), ("mid", (middle, Part("web-1", 3)))):
        for part in parts:
            stage.join_queue(key, part)
    text = page(operator, "mid/change/")
    assert "It waits for root. Only that one helps." in text
    assert_shows(text, 'href="/admin/zklock/lock/root/change/"', hides=["act/break", "zklock break"])
    form = page(operator, "act/break/?key=root&key=mid")
    assert re.findall(r'aria-label="(\w+), [^"]*" checked', form) == ["root"]
    assert "waits for another lock" in form
