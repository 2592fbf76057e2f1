"""The parts of the admin that need no ZooKeeper."""

import io
import math
from dataclasses import replace
from datetime import UTC, datetime

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
from django_zklock.core.queue.operator_hold import OperatorHold
from django_zklock.dashboard.acts import Target
from django_zklock.dashboard.changelist import LockQuerySet
from django_zklock.dashboard.detail import Detail, links
from django_zklock.inspection import LockInfo, Wait
from django_zklock.models import Lock
from django_zklock.report import formatting

HOLD = OperatorHold(
    key="k", path="", token=5, by="anna", reason="", since=datetime(2026, 11, 1, tzinfo=UTC), seconds=60
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
    assert replace(INFO, **change).state == state


def test_the_reasons_for_waiting_are_sentences():
    assert formatting.reasons(INFO) == ["web-1 · pid 7 has held it for 1 min 30 s, for shop.charge.", "3 callers wait."]
    assert formatting.reasons(replace(INFO, waiting=0)) == formatting.reasons(INFO)[:1]
    assert formatting.reasons(replace(INFO, holders=(), waiting=0)) == []
    assert "handed over" in formatting.reasons(replace(INFO, holders=()))[0]
    assert "different limits in their code (2, 3)" in formatting.reasons(replace(INFO, own_limits=(2, 3)))[-1]


def test_the_page_of_a_lock_in_a_deadlock_offers_to_break_one_of_them():
    out, back = Wait(who="one", holds="k", waits_for="a"), Wait(who="two", holds="a", waits_for="k")
    shown = Detail("k", INFO, replace(NOTHING, waits=(out, back), cycles=((back, out),)))
    assert (shown.chain, shown.info.deadlocked, shown.root) == ((out, back), True, "")
    assert "Break one of them" in shown.advice


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


def test_locks_have_no_table_and_no_migration_but_permissions(db):
    out = io.StringIO()
    call_command("makemigrations", "--check", "--dry-run", stdout=out)
    assert "No changes" in out.getvalue()
    assert Lock._meta.db_table not in connection.introspection.table_names()
    codenames = Permission.objects.filter(content_type__app_label="zklock").values_list("codename", flat=True)
    actions = {"break_lock", "hold_lock", "limit_lock", "request_release_lock"}
    assert set(codenames) == {"view_lock", *actions}


@pytest.mark.parametrize("text", ["", ":::", "g:x:k", "g:1:../../up", "g:1:!waiting/k", "g:1:" + "k" * 5000, "g::k"])
def test_no_text_but_that_of_a_target_is_a_target(text):
    assert Target.parse(text) is None


def test_a_target_is_parsed_from_its_text():
    target = Target("stock/a:b", "ab" * 16, 7)
    assert Target.parse(str(target)) == target


class Marked:
    """A class that another app lists before the class of each admin."""

    def get_urls(self):
        return [path("marked/", Marked, name="marked"), *super().get_urls()]


def test_a_subclass_of_the_registered_class_has_its_methods_and_the_pages():
    subclass = type("Subclass", (Marked, LazyLockAdmin), {})
    model_admin = subclass(Lock, AdminSite("other"))
    for _ in range(2):
        names = [pattern.name for pattern in model_admin.get_urls()]
        assert {"marked", "zklock_lock_act"} <= {*names}
    assert model_admin.check() == []
