"""The card and the strip of an incident show its callers by their work, and the operators who have acted."""

import html
import re
from datetime import timedelta

import pytest
from django.utils import timezone
from support.adminsite import LIST
from support.browser.actors import Part, staged
from support.faults import connected, proxied
from support.proxy import GET_CHILDREN2, GET_DATA
from support.texts import assert_shows
from support.zoo import settle

from django_zklock import inspection, operations
from django_zklock.contrib.events.models import Attempt, OperatorAction
from django_zklock.inspection.queries import MAX_WAITERS

pytestmark = pytest.mark.django_db

CHECKOUT = Part.view("POST /checkout/", "shop.views.checkout", "web-1", 78)
REFRESH = {"X-ZkLock-Refresh": "1"}


@pytest.fixture
def stage(zoo, monkeypatch):
    """Queues in which each holder that others wait for hangs."""
    monkeypatch.setattr("django_zklock.admin.LockAdmin.long_held", 0.001)
    with staged(zoo) as stage:
        yield stage


def hang(stage, *waiters, key="stock"):
    holder = stage.join_queue(key, Part("worker-1", 7, what="import", waited=1))
    for waiter in waiters:
        stage.join_queue(key, waiter)
    return holder


def page(client, **headers):
    inspection.snapshot(max_age=0.0)
    return html.unescape(" ".join(client.get(LIST, headers=headers).content.decode().split()))


def groups(text):
    part = text.partition("zklock-hurt")[2].partition("</ul>")[0]
    return [re.sub(" +", " ", re.sub("<.*?>", "", row)).strip() for row in re.findall("<li>(.*?)</li>", part)]


def strip(text):
    return re.sub("<.*?>", "", text.partition("zklock-strip")[2].partition("</p>")[0])


def test_callers_are_counted_by_their_work(stage, operator):
    """Two calls of a task are one work, whatever their ids are."""
    refunds = [Part.task("shop.tasks.refund", f"worker-{number}", 9) for number in (3, 4)]
    hang(stage, *[CHECKOUT] * 3, *refunds)
    first, second = groups(page(operator))
    assert re.fullmatch(r"3 × POST /checkout/ web-1 · \d+\.\d s", first)
    assert re.fullmatch(r"2 × shop.tasks.refund worker-3, worker-4 · \d+\.\d s", second)


def test_callers_that_do_not_say_their_work_are_counted_too(stage, operator):
    hang(stage, Part("web-1"), Part("web-1"))
    (group,) = groups(page(operator))
    assert group.startswith("2 × code without a name web-1")


def test_the_callers_of_a_card_cost_no_request(zoo, stage, operator):
    def reads(proxy):
        settle()
        return [proxy.counts[opcode] for opcode in (GET_CHILDREN2, GET_DATA)]

    with proxied(zoo, 10) as proxy:
        connected()
        hang(stage, *[CHECKOUT] * 4)
        page(operator)
        proxy.reset()
        inspection.snapshot(max_age=0.0)
        lists, read = reads(proxy)
        proxy.reset()
        assert groups(page(operator, **REFRESH))[0].startswith("4 × POST /checkout/")
        lists_of_page, read_of_page = reads(proxy)
        assert lists_of_page == lists
        assert read_of_page - read <= 1  # the configuration of the servers, once in a while


def test_a_refresh_sees_new_callers(stage, operator):
    hang(stage, CHECKOUT)
    assert groups(page(operator))[0].startswith("1 × POST /checkout/")
    for _ in range(3):
        stage.join_queue("stock", CHECKOUT)
    assert groups(page(operator, **REFRESH))[0].startswith("4 × POST /checkout/")


def test_callers_that_a_look_does_not_read_are_a_number(stage, operator):
    hang(stage, *[CHECKOUT] * (MAX_WAITERS + 1))
    first, others = groups(page(operator))
    assert first.startswith(f"{MAX_WAITERS} × POST /checkout/")
    assert others == "and 1 more"


def test_refused_callers_are_counted_from_the_begin_of_the_hold_on(stage, operator):
    hang(stage, CHECKOUT)
    for age in (0, 0, 3600):
        at = timezone.now() - timedelta(seconds=age - 1)
        Attempt(key="stock", template="", pid=1, at=at, outcome=Attempt.TIMED_OUT, waited=0, count=2).save()
    assert "4 callers were refused meanwhile" in groups(page(operator))


def test_the_strip_counts_the_callers_of_the_worst_incident_only(stage, operator):
    hang(stage, CHECKOUT, CHECKOUT)
    hang(stage, Part("web-1"), key="other")
    assert "2 things need attention: stock is blocked. 2 of 3 waiting callers are behind it" in strip(page(operator))


def test_the_strip_says_since_when_and_that_nobody_has_acted(stage, operator):
    hang(stage, CHECKOUT)
    assert re.search(r"began \d\d:\d\d:\d\d nobody has acted yet", strip(page(operator)))


def test_the_strip_names_who_has_requested_the_release(stage, operator):
    hang(stage, CHECKOUT)
    operations.request_release("stock", by="anna", reason="deploy")
    assert_shows(strip(page(operator)), "anna has requested the release", hides=["nobody has acted"])


def test_the_strip_names_who_looks_after_it(stage, operator):
    hang(stage, CHECKOUT)
    page(operator)
    (card,) = operator.get(LIST).context["cards"]
    operations.acknowledge(card["identity"], title=card["title"], seconds=60, reason="a deploy", by="bert")
    assert_shows(strip(page(operator)), "bert looks after it", hides=["nobody has acted"])


def test_the_strip_names_who_has_broken_a_lock_of_it(stage, operator):
    hang(stage, CHECKOUT)
    OperatorAction(key="stock", what="broken", by="carl", at=timezone.now() + timedelta(seconds=1), token=1).save()
    assert_shows(strip(page(operator)), "carl has broken a lock", hides=["nobody has acted"])


def test_the_text_of_the_live_region_does_not_change_with_the_time(stage, operator):
    """Screen readers would read it at each refresh."""
    hang(stage, CHECKOUT)
    live = re.compile(r'<strong role="status">(.*?)</strong>')
    assert live.findall(page(operator)) == ["1 thing needs attention: stock is blocked."]
