"""The parts of the admin that need no ZooKeeper."""

import io
import math
import re
import shlex
from dataclasses import replace
from datetime import datetime, timezone

import pytest
from django.contrib.admin import AdminSite
from django.contrib.auth.models import Permission
from django.core.exceptions import FieldError, ImproperlyConfigured
from django.core.management import call_command
from django.db import connection
from django.db.models import Q
from django.test import override_settings
from django.urls import path
from support.lookinfo import HOLDER, NOTHING

from django_zklock import conf
from django_zklock.admin import LazyLockAdmin
from django_zklock.core.queue import order
from django_zklock.core.queue.operator_hold import OperatorHold
from django_zklock.dashboard.changelist import LockQuerySet
from django_zklock.dashboard.detail import Detail, links
from django_zklock.exceptions import UnreadableQueue
from django_zklock.inspection import Figures, LockInfo, Wait
from django_zklock.models import Lock
from django_zklock.report import formatting
from django_zklock.report.timeline import HEIGHT, NARROWEST, WIDTH, Bar, picture

HOLD = OperatorHold(
    key="k", path="", token=5, by="anna", reason="", since=datetime(2026, 11, 1, tzinfo=timezone.utc), seconds=60
)
INFO = LockInfo(key="k", path="/zklock/k", holders=(HOLDER,), waiting=3, longest_wait=1.0)


def keys(locks):
    return [lock.key for lock in locks]


@pytest.fixture
def locks():
    return LockQuerySet(Lock, locks=[Lock(key=key) for key in ("b", "a", "C")])


def test_the_queryset_does_what_a_change_list_needs(locks):
    assert keys(locks.order_by("key")) == ["C", "a", "b"]
    assert keys(locks.order_by("-pk")) == ["b", "a", "C"]
    assert keys(locks.filter(pk__in=["a", "b"])) == ["b", "a"]
    assert keys(locks.filter(Q())) == ["b", "a", "C"]
    assert keys(locks.all()[1:]) == ["a", "C"]
    assert locks.count() == 3


def test_unknown_lookups_raise_field_errors(locks):
    for condition in ({"held": 1}, {"key": "a"}, {"pk__gt": 1}):
        with pytest.raises(FieldError):
            locks.filter(**condition)
    with pytest.raises(FieldError):
        locks.order_by("?")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        *[(-1, "0.0 s"), (0.44, "0.4 s"), (59.9, "59 s"), (61, "1 min 1 s"), (7300, "2 h 1 min"), (90000, "1 d 1 h")],
        *[(math.nan, "0.0 s"), (-math.inf, "0.0 s"), (math.inf, "46296 d 7 h"), (1e308, "46296 d 7 h")],
    ],
)
def test_durations_have_their_two_greatest_units(seconds, text):
    assert formatting.duration(seconds) == text


@pytest.mark.parametrize(
    ("change", "state"),
    [
        ({}, "long"),
        ({"holders": (replace(HOLDER, age=5.0),)}, "contended"),
        ({"holders": (replace(HOLDER, age=5.0),), "waiting": 0}, "held"),
        ({"holders": ()}, "passing"),
        ({"holders": (replace(HOLDER, operator=HOLD),)}, "operator"),
        ({"holders": (replace(HOLDER, operator=replace(HOLD, task_id="one")),)}, "reserved"),
        ({"holders": (), "waiting": 0}, "free"),
        ({"problem": "odd"}, "unreadable"),
        ({"deadlocked": True}, "deadlocked"),
    ],
)
def test_each_state_has_a_name(change, state):
    assert replace(INFO, **change).state() == state


def test_the_reasons_for_waiting_are_sentences():
    assert formatting.reasons(INFO) == ["web-1 · pid 7 has held it for 1 min 30 s, for shop.charge.", "3 callers wait."]
    assert formatting.reasons(replace(INFO, waiting=0)) == formatting.reasons(INFO)[:1]
    assert formatting.reasons(replace(INFO, holders=(), waiting=0)) == []
    assert "handed over" in formatting.reasons(replace(INFO, holders=()))[0]
    assert "different limits in their code (2, 3)" in formatting.reasons(replace(INFO, own_limits=(2, 3)))[-1]


def test_waits_in_a_circle_are_a_deadlock_only_if_none_of_them_ends():
    """A semaphore whose other holder goes on will have a permit."""
    waits = (Wait(who="one", holds="k", waits_for="a"), Wait(who="two", holds="a", waits_for="k"))
    shown = Detail("k", INFO, replace(NOTHING, waits=waits), long_held=60)
    assert (shown.chain, shown.is_cycle, shown.victims) == (waits, False, ["k"])
    assert "If it lasts" not in shown.advice
    shown = Detail("k", INFO, replace(NOTHING, waits=waits, cycles=(waits,)), long_held=60)
    assert (shown.chain, shown.is_cycle, shown.victims) == (waits, True, ["k", "a"])
    assert "Break one of them" in shown.advice
    assert not shown.can_be_asked


def test_a_deadlock_comes_before_other_waits_of_the_holders():
    other = Wait(who="reader 1", holds="k", waits_for="a")
    out, back = Wait(who="reader 2", holds="k", waits_for="b"), Wait(who="writer", holds="b", waits_for="k")
    snapshot = replace(NOTHING, waits=(back, other, out), cycles=((back, out),))
    shown = Detail("k", INFO, snapshot, long_held=60)
    assert (shown.chain, shown.is_cycle) == ((out, back), True)


def test_a_lock_that_waits_for_a_deadlock_says_so():
    """To break the lock itself would not end the deadlock."""
    into = Wait(who="one", holds="k", waits_for="a")
    circle = (Wait(who="two", holds="a", waits_for="b"), Wait(who="three", holds="b", waits_for="a"))
    shown = Detail("k", INFO, replace(NOTHING, waits=(into, *circle), cycles=(circle,)), long_held=60)
    assert (shown.chain, shown.is_cycle, shown.victims) == ((into, *circle), True, ["a", "b"])


def test_the_values_of_links_are_escaped():
    templates = {"Flower": "https://flower/task/{id}", "Logs": "/logs?host={host}&pid={pid}", "None": "/x/{queue}"}
    with override_settings(ZKLOCK={"URL": "zk://h", "ADMIN_LINKS": templates}):
        assert links("k", HOLDER) == [("Flower", "https://flower/task/a%2Fb%3Fc"), ("Logs", "/logs?host=web-1&pid=7")]


INVALID_LINKS = (
    *("javascript:alert(1)", "ftp://x/{id}", "x/{id}", "https://{id}@x/", "https:///{id}", "//{host}/", "//x/{id}"),
    *("https://{host}/", "https://flower.{host}/", "https://x:{pid}/", "https://x/{id!r}", "https://x/{id.real}"),
    *("/\\{host}", "/\t/{host}", "https:\\\\x/{id}", "https://x/{}", "https://x/{"),
)


@pytest.mark.parametrize("wrong", ["https://x", {"a": 1}, {"": "https://x"}, *({"a": link} for link in INVALID_LINKS)])
def test_invalid_links_are_errors(wrong):
    raw = {"URL": "zk://h", "ADMIN_LINKS": wrong}
    assert [problem.id for problem in conf.problems(raw)] == ["E012"]
    with override_settings(ZKLOCK=raw), pytest.raises(ImproperlyConfigured, match="ADMIN_LINKS"):
        conf.current()


def test_no_word_of_a_problem_is_taken_for_a_znode():
    problem = (
        "a mutex of Apache Curator ('_c_x-lock-0000000001') and a znode in kazoo's grammar ('y__lock__0000000002')."
    )
    with override_settings(ZKLOCK={"URL": "zk://h1"}):
        shown = Detail("k", replace(INFO, holders=(), problem=problem), NOTHING, long_held=60)
        names = [line.rpartition("/")[2] for line in shown.commands if " get " in line]
    assert names == ["_c_x-lock-0000000001", "y__lock__0000000002"]


HOLDER_NAME = f"{'a' * 32}__lock__0000000000"


@pytest.mark.parametrize(
    "name",
    [
        *(
            "x-0000000001",
            "x'n1'0000000001",
            "x\"'n1'-0000000001",
            "\u202e-0000000001",
            "a\\'0000000001",
            "'-0000000001",
        ),
        *(f"x'{HOLDER_NAME}'0000000009", f"...'{HOLDER_NAME}'0000000009", f"'\"{HOLDER_NAME}'0000000009"),
        *("...'n1'0000000001", f"{'x' * 55}\\'n1'0000000009", f"{'x' * 48}0000000001", f"{'x' * 49}0000000001"),
    ],
)
def test_a_znode_that_is_to_be_deleted_is_named_exactly(name):
    """Its name may quote that of the holder, and the text of the problem may cut it. Then no command deletes it."""
    with pytest.raises(UnreadableQueue) as caught:
        order.ordered([name])
    with override_settings(ZKLOCK={"URL": "zk://h1"}):
        shown = Detail("k", replace(INFO, holders=(), problem=str(caught.value)), NOTHING, long_held=60)
        (delete,) = [line for line in shown.commands if " delete " in line] or [""]
    exact = f"zkCli.sh -server h1:2181 delete {shlex.quote(f'/zklock/k/{name}')}"
    assert delete == (exact if name.isprintable() and len(ascii(name)) <= 60 else "")


def test_locks_have_no_table_and_no_migration_but_permissions(db):
    out = io.StringIO()
    call_command("makemigrations", "--check", "--dry-run", stdout=out)
    assert "No changes" in out.getvalue()
    assert Lock._meta.db_table not in connection.introspection.table_names()
    codenames = Permission.objects.filter(content_type__app_label="zklock").values_list("codename", flat=True)
    actions = {"break_lock", "hold_lock", "limit_lock", "request_release_lock", "show_stack_lock"}
    assert set(codenames) == {"view_lock", *actions}


def test_a_hold_whose_beginning_is_unknown_is_not_the_longest():
    """A hold of at most 90 s may have begun a second ago."""
    unknown = replace(INFO, holders=(replace(HOLDER, granted=None),))
    assert Figures.of([unknown]).longest_hold is None
    assert Figures.of([unknown, replace(INFO, holders=(replace(HOLDER, age=3.0),))]).longest_hold == 3.0


def spans(lane):
    return [(part.what, part.x, part.x + part.width) for part in lane.parts]


def test_the_holds_of_a_lock_are_one_lane_whatever_the_clocks_say():
    now, before = Bar("now", began=50, granted=40), Bar("before", began=97, granted=97, ended=38)
    shown = picture([now, before])
    (lane,) = shown.lanes
    assert lane.name == "now"
    assert [what for what, _begin, _end in spans(lane)] == ["hold", "hold"]
    assert spans(lane)[1][2] == WIDTH


def test_holds_at_the_same_time_have_lanes_of_their_own():
    """One that begins after the end of another has the lane of that."""
    permits = [("c", 20, 0), ("b", 50, 10), ("a", 60, 30)]
    shown = picture([Bar(name, at, at, end, is_shared=True) for name, at, end in permits])
    assert [(lane.name, len(lane.parts)) for lane in shown.lanes] == [("c", 2), ("b", 1)]


def test_a_lost_hold_is_marked_until_the_next_one_got_the_lock():
    lost = Bar("lost", began=100, granted=80, ended=60, is_bad=True)
    (lane,) = picture([Bar("next", began=40, granted=40, ended=20), lost]).lanes
    (what, _begin, end), (_hold, next_begins, _end) = spans(lane)
    assert (what, end) == ("lost", next_begins)


def test_a_lost_hold_without_a_next_one_ends_where_it_was_lost():
    (lane,) = picture([Bar("lost", began=100, granted=80, ended=51.5, is_bad=True)]).lanes
    assert spans(lane)[0][2] == WIDTH // 2


def test_a_hold_of_a_moment_is_seen():
    (lane,) = picture([Bar("short", began=90, granted=90, ended=89.999)]).lanes
    assert lane.parts[0].width == NARROWEST


def test_the_area_is_as_high_as_many_wait():
    """One begins to wait when the picture begins, another in its middle; then one is granted, and one still waits."""
    shown = picture([Bar("waits", began=50), Bar("held", began=100, granted=25)])
    steps = [(int(x), float(y)) for x, y in re.findall(r"H(\d+)V([\d.]+)", shown.area)]
    assert [y for _x, y in steps] == [HEIGHT / 2, 0, HEIGHT / 2, HEIGHT]
    assert [x for x, _y in steps] == sorted(x for x, _y in steps)
    assert steps[-1][0] == WIDTH


def test_the_area_is_empty_if_nobody_waited():
    assert picture([Bar("held", began=20, granted=20)]).area == ""


@pytest.mark.parametrize("span", [1.0, 7.0, 21.0, 65.0, 79.0, 500.0, 5000.0, 100_000.0, 500_000.0])
def test_marks_are_whole_and_leave_room_for_now(span):
    shown = picture([Bar("", began=span, granted=span)])
    assert shown.ticks
    assert all(5 < float(x.rstrip("%")) < 72 for x, _text in shown.ticks)


def test_a_few_old_grants_do_not_shrink_all_others():
    recent = [Bar("", began=60.0 + number, granted=59.0 + number, ended=58.0 + number) for number in range(5)]
    shown = picture([*recent, Bar("", began=86_400, granted=86_400, ended=80_000), Bar("", 86_400, 86_400)])
    assert [text for _x, text in shown.ticks] == ["-20 s", "-40 s", "-1 min"]
    assert len(shown.lanes[0].parts) == 6, "one was over by then"
    assert spans(shown.lanes[0])[0] == ("hold", 0, WIDTH)


def test_without_a_grant_there_is_no_picture():
    assert picture([]) is None


class Marked:
    """A class that another app lists before the class of each admin."""

    def get_urls(self):
        return [path("marked/", Marked, name="marked"), *super().get_urls()]


def test_a_subclass_of_the_registered_class_has_its_methods_and_the_pages():
    subclass = type("Subclass", (Marked, LazyLockAdmin), {})
    model_admin = subclass(Lock, AdminSite("other"))
    for _ in range(2):
        names = [pattern.name for pattern in model_admin.get_urls()]
        assert {"marked", "zklock_lock_health"} <= {*names}
    assert model_admin.check() == []


def test_the_pages_may_be_asked_for_twice_at_once():
    model_admin = LazyLockAdmin(Lock, AdminSite("other"))
    calls = model_admin.get_urls, model_admin.get_urls  # as two threads look them up
    first, second = (call() for call in calls)
    assert len(first) == len(second) > 10
