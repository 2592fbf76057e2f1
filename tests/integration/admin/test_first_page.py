"""The first page and the frame say what is wrong and what to do; on the page of one lock, what helps comes first."""

import html
import re
import threading
from dataclasses import replace

import pytest
from django.test import override_settings
from django.utils import timezone
from support.adminsite import LIST, user_with
from support.browser.actors import Part, staged
from support.faults import within
from support.texts import assert_shows
from support.zoo import eventually

from django_zklock import inspection, operations
from django_zklock.contrib.events.models import OperatorAction
from django_zklock.core.queue.nodes import Kind
from django_zklock.dashboard import frame
from django_zklock.report import background, verdict

pytestmark = pytest.mark.django_db

PAGES = {
    "": "Attention",
    "?q=": "Locks",
    "root/change/": "Locks",
    "root/history/": "Locks",
    "break/?key=root&do=break": "Locks",
    "hold/?key=root": "Locks",
    "limit/?key=root": "Locks",
    "acknowledge/?identity=x": "Attention",
    "groups/": "Groups",
    "groups/?by=host": "Hosts",
    "host/?host=w1": "Hosts",
    "history/": "History",
    "health/": "Servers",
}
"""The pages by the tab to which they belong."""


@pytest.fixture
def stage(zoo, monkeypatch):
    """Queues in which each holder that others wait for hangs."""
    monkeypatch.setattr("django_zklock.admin.LockAdmin.long_held", 0.001)
    with staged(zoo) as stage:
        yield stage


def task(name, host, pid=7):
    return replace(Part.task(f"shop.tasks.{name}", host, pid), waited=1)


def page(client, path=""):
    """Return a page as it is now, without its tags' spaces."""
    inspection.snapshot(max_age=0.0, max_waiters=1)
    return html.unescape(" ".join(client.get(LIST + path).content.decode().split()))


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


def test_every_page_has_the_tabs_and_names_its_own(stage, operator):
    chain(stage)
    for path, label in PAGES.items():
        text = page(operator, path)
        (tabs,) = re.findall(r'<nav class="zklock-tabs.*?</nav>', text)
        assert re.findall(r'aria-current="\w+">([\w ]+?)(?: <|<)', tabs) == [label], path
        assert 'Attention <span class="zklock-count zklock-alarm">1</span>' in tabs, path
        for tab, count in (("Locks", 3), ("Servers", 1)):
            assert f'{tab} <span class="zklock-count">{count}</span>' in tabs, path
        assert "button" not in tabs, path
        assert 'href="/admin/zklock/lock/data.json">JSON</a>' in text.partition("</nav>")[2], path


def test_a_chain_is_one_card_with_a_tree(stage, operator):
    chain(stage)
    text = page(operator)
    assert text.count("<section") == 1
    assert "3 callers wait" in text
    tree = text.partition('<ul class="zklock-tree">')[2].partition("</ul>")[0]
    assert re.findall(r'zklock-depth-(\d)"><a [^>]*>(\w+)</a>', tree) == [("1", "mid"), ("2", "leaf")]
    assert "waits for root" in tree
    assert re.findall(r"break/\?key=(\w+)&do=(\w+)", text) == [("root", "ask"), ("root", "break")]


def test_a_deadlock_is_a_row_for_each_holder(stage, operator):
    parts = deadlock(stage)
    text = page(operator)
    rows = re.findall("<tr>.*?</tr>", text.partition("<tbody>")[2].partition("</tbody>")[0])
    assert len(rows) == 2
    for row, part, holds, waits in zip(rows, parts, "ab", "ba", strict=True):
        assert re.findall(r"lock/(\w)/change/", row) == [holds, waits]
        assert_shows(row, f"{part.host} · pid 7", f"break/?key={holds}&do=break")
        identity = part.about["id"]
        assert f'title="{identity}">{identity[:8]}</span>' in row
        assert row.count(identity) == 1
    assert "Break a…" not in page(user_with("view_lock"))


def test_equal_cards_are_folded(stage, operator):
    for number in range(5):
        stage.join_queue(f"pay/{number}", task("pay", f"w{number}"))
        stage.join_queue(f"pay/{number}", Part("web-1", 77))
    stage.join_queue("other", task("other", "w9"))
    stage.join_queue("other", Part("web-1", 77))
    text = page(operator)
    assert text.count("<section") == 2
    assert "6 things need attention" in text
    folded = text.partition("4 more of shop.tasks.pay")[2].partition("</details>")[0]
    assert len(set(re.findall(r"lock/(pay_2F\d)/change/", folded))) == 4
    assert folded.count("Acknowledge…") == 4


def test_a_calm_page_says_what_was_read_and_what_comes_next(zoo, operator):
    text = page(operator)
    assert_shows(text, "Nothing needs attention.", "No lock is held now.")
    hold = operations.hold_lock("stock", seconds=600, reason="deploy of 2.3", by="anna")
    text = page(operator)
    assert re.search("1 lock and 1 server read <time [^>]*>0.. s</time> ago", text)
    assert re.search("operator anna: deploy of 2.3 <span[^>]*>ends in 9 min 5. s", text)
    assert_shows(text, "zklock-strip zklock-calm", hides=["No lock is held now."])
    operations.end_hold("stock", token=hold.token, by="anna", reason="done")


@pytest.mark.timed
def test_without_zookeeper_nothing_is_offered(stage, zoo, operator):
    deadlock(stage)
    assert "Acknowledge…" in page(operator)
    with zoo.configured("127.0.0.1:1"), within(15):
        text = page(operator)
    assert "Until it answers, nothing can be broken, held or acknowledged." in text
    assert "Start the servers that are down" in text
    for offer in ("do=break", "Acknowledge…", "Hold a lock…", "Set limit…"):
        assert offer not in text


def test_a_missing_permission_is_named_within_the_admin(zoo):
    viewer = user_with("view_lock")
    for path, text in (
        ("break/?key=a&do=break", "but not break them. Needs: break_lock."),
        ("break/?key=a&do=ask", "but not request their release. Needs: request_release_lock."),
        ("hold/", "but not hold them. Needs: hold_lock."),
        ("limit/", "but not set their limits. Needs: limit_lock."),
        ("stack/", "but not what their holders do. Needs: show_stack_lock."),
        ("acknowledge/", "but not break them. Needs: break_lock."),
    ):
        answer = viewer.get(LIST + path)
        shown = " ".join(re.sub("<[^>]*>", "", answer.content.decode()).split())
        assert (answer.status_code, f"You may see locks {text}" in shown) == (403, True), path
        assert "Back to the locks" in shown
        assert "breadcrumbs" in answer.content.decode()
    stranger = user_with().get(LIST)
    assert stranger.status_code == 403
    assert_shows(stranger.content.decode(), "You may not see locks.", hides=["zklock-tabs"])


@pytest.mark.parametrize(
    ("path", "title", "text"),
    [
        ("break/?key=root&do=break", "Break root?", "After a break, the holder learns"),
        ("break/?key=root&do=ask", "Request release of root?", "After a request, the work goes on"),
        ("break/?key=root&key=mid&do=break", "Break 2 locks?", "Only the ticked holders"),
        ("hold/?key=root", "Hold root?", "Your hold queues behind them."),
        ("limit/?key=root", "Set the limit of root?", "No limit is set for root."),
    ],
)
def test_a_form_is_about_one_action(stage, operator, path, title, text):
    chain(stage)
    for _ in range(2):
        OperatorAction(key="x", what="broken", by="anna", reason="rush hour", at=timezone.now()).save()
    shown = page(operator, path)
    assert f"<h1>{title}</h1>" in shown
    assert text in shown
    assert 'list="zklock-reasons"' in shown
    assert shown.count('<option value="rush hour">') == 1
    if "do=" in path:
        assert "next: w2 · pid 7" in shown
        assert ("Instead:" in shown, shown.count('type="submit" form="lock_form"')) == (True, 1)


def test_an_acknowledgement_is_one_click_and_can_be_withdrawn(stage, operator):
    deadlock(stage)
    page(operator)
    identity = operator.get(LIST).context["cards"][0]["identity"]
    form = page(operator, f"acknowledge/?identity={identity}")
    choices = {"15": "For 15 min", "60": "For 1 h", "480": "For 8 h"}
    assert re.findall(r'name="minutes" value="(\d+)">(.*?)<', form) == list(choices.items())
    url = f"{LIST}acknowledge/?identity={identity}"
    done = operator.post(url, {"minutes": "480", "reason": "looks at it"}, follow=True).content.decode()
    (message,) = re.findall('<ul class="messagelist">(.*?)</ul>', done, re.DOTALL)
    assert "Acknowledged until" in message
    (withdraw,) = re.findall('href="([^"]*)">Withdraw…</a>', message)
    form = operator.get(html.unescape(withdraw)).content.decode()
    assert_shows(form, "Withdraw the acknowledgement?", 'name="minutes" value="0">Withdraw<')


def looks():
    return [thread for thread in threading.enumerate() if thread.name == "zklock-outside"]


@pytest.mark.django_db(transaction=True)
def test_the_index_has_the_count_of_the_last_look_and_waits_for_none(stage, zoo, operator, monkeypatch):
    deadlock(stage)

    def index(client=operator):
        return client.get("/admin/").content.decode()

    monkeypatch.setattr(frame, "LOOK_EVERY", 0.0)
    assert "need attention" not in index()
    eventually(lambda: "Locks (1 needs attention)" in index(), 30)
    assert "Locks (1 needs attention)" not in operator.get(f"{LIST}?q=").content.decode().partition("content-main")[2]
    monkeypatch.undo()
    for look in looks():
        look.join(30)
    assert "attention" not in index(user_with())
    background.last.clear()
    monkeypatch.setattr(frame, "LOOK_EVERY", 0.0)
    with override_settings(ZKLOCK={"URL": "zk://127.0.0.1:1/app"}), within(1.0):
        assert "attention" not in index()
        monkeypatch.setattr(frame, "LOOK_EVERY", 1e9)
        for look in looks():
            look.join(30)


def test_a_look_that_hangs_is_not_joined_by_others(zoo, operator, monkeypatch):
    hangs, goes_on = threading.Event(), threading.Event()

    def hang(*_, **__):
        hangs.set()
        goes_on.wait(60)

    monkeypatch.setattr(verdict, "look", hang)
    monkeypatch.setattr(frame, "LOOK_EVERY", 0.0)
    try:
        operator.get("/admin/")
        assert hangs.wait(30)
        for _ in range(3):
            assert operator.get("/admin/").status_code == 200
        (look,) = looks()
    finally:
        goes_on.set()
    look.join(30)


def test_a_victim_leads_to_the_root_and_is_not_to_be_broken(stage, operator):
    root, middle = Part.task("shop.import", "worker-1", 1), Part.task("shop.refund", "worker-1", 2)
    for key, parts in (("root", (root, middle)), ("mid", (middle, Part("web-1", 3)))):
        for part in parts:
            stage.join_queue(key, part)
    text = page(operator, "mid/change/")
    assert_shows(text, 'class="button" href="/admin/zklock/lock/root/change/">Go to root', hides=["do=break"])
    assert re.search('href="/admin/zklock/lock/root/change/"[^>]*>root</a> <span>held by worker-1 · pid 1 · shop', text)
    host = operator.get(f"{LIST}host/?host=worker-1").content.decode()
    assert re.findall(r'aria-label="(\w+), [^"]*" value="[^"]*" checked', host) == ["root"]
    assert "waits for another lock" in host


def test_the_queue_has_a_row_for_each_process(stage, operator):
    for number in range(15):
        stage.join_queue("k", Part("web-1", number))
    for _ in range(7):
        stage.join_queue("k", Part("web-2", 12))
    text = page(operator, "k/change/")
    first, folded = text.partition("zklock-queue")[2].split("All 21 waiters in their order")
    assert first.count('<th scope="row">') == 10
    assert folded.count('<th scope="row">') == 21
    assert "21 waiting" in text.partition("zklock-lanes")[2].partition("</section>")[0]
    for number in range(4):
        stage.join_queue("few", Part("web-3", 1 + number // 3))
    assert "<strong>×2</strong>" in page(operator, "few/change/")


def test_the_holders_of_a_semaphore_are_rows(stage, operator):
    for number in range(3):
        stage.join_queue("printers", Part(f"web-{number}", limit=3), Kind.PERMIT)
    links = re.findall(r'href="([^"]*target=[^"]*)"', page(operator, "printers/change/"))
    assert len(links) == 3
    form = operator.get(links[1]).content.decode()
    assert re.findall(r'aria-label="printers, ([^"]*)" value="[^"]*" checked', form) == ["web-1 · pid 4711"]


def test_groups_are_sorted_by_a_figure(stage, operator):
    for number in range(3):
        stage.join_queue(f"a/{number}", Part("web-1", number))
    for number in range(2):
        stage.join_queue("b/0", Part("web-2", number))
    for order, first in (("", "web-2"), ("nonsense", "web-2"), ("locks", "web-1")):
        page = operator.get(f"{LIST}groups/?by=host&o={order}")
        rows = page.context["groups"]
        assert rows[0]["name"] == first, order
        assert {row["name"]: row["processes"] for row in rows} == {"web-1": 3, "web-2": 1}
    assert "by=host&amp;o=locks" in operator.get(f"{LIST}groups/?by=host").content.decode()
