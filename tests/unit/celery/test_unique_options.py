"""The options of unique tasks, and the rules of their reservations."""

from __future__ import annotations

import sys
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.core.handlers.base import BaseHandler
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory
from django.urls import path

from django_zklock import zk_locked
from django_zklock.conf.options import given_options
from django_zklock.contrib.celery.messages import short_id
from django_zklock.contrib.celery.unique import reservations
from django_zklock.contrib.celery.unique.record import Reservation, State, Verdict, path_of
from django_zklock.core.execution import work
from django_zklock.exceptions import UnreadableQueue


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"unique": "until_end"}, "until_done"),
        ({"unique": True}, "until_done"),
        ({"unique": "until_start", "on_duplicate": "skip"}, "raise"),
        ({"unique": "until_start", "unique_for": 0}, "seconds"),
        ({"unique": "until_start", "unique_for": True}, "seconds"),
        ({"unique": "until_start", "unique_for": float("nan")}, "seconds"),
        ({"unique": "until_start", "unique_for": "1h"}, "seconds"),
        ({"on_duplicate": "raise"}, "need unique"),
        ({"unique_for": 5}, "need unique"),
    ],
)
def test_an_option_without_a_meaning_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        zk_locked("a", **options)


def test_options_of_unique_tasks_are_read() -> None:
    options = {"unique": "until_done", "on_duplicate": None, "unique_for": timedelta(minutes=1)}
    assert given_options(options) == {"unique": "until_done", "on_duplicate": None, "unique_for": 60.0}


NOW = 1000.0
WORKER, PUBLISHER, MARK = "x-worker", "x-publisher", "t-token"


@pytest.mark.parametrize(
    ("state", "late", "until", "children", "verdict"),
    [
        (State.PUBLISHING, False, None, [PUBLISHER, MARK], Verdict.SENDING),
        (State.PUBLISHING, True, NOW + 1, [MARK], Verdict.DEAD),
        (State.PUBLISHING, False, None, [PUBLISHER, WORKER], Verdict.LIVE),
        (State.QUEUED, False, None, [MARK], Verdict.LIVE),
        (State.QUEUED, False, NOW + 1, [MARK], Verdict.LIVE),
        (State.QUEUED, True, NOW - 1, [MARK], Verdict.DEAD),
        (State.QUEUED, False, NOW - 1, [WORKER], Verdict.LIVE),
        (State.STARTED, False, NOW - 1, [WORKER], Verdict.LIVE),
        (State.STARTED, False, None, [MARK], Verdict.DEAD),
        (State.STARTED, True, None, [MARK], Verdict.LIVE),
        (State.STARTED, True, NOW - 1, [MARK], Verdict.DEAD),
    ],
)
def test_a_reservation_is_judged_by_its_state_and_its_processes(
    state: State, late: bool, until: float | None, children: list[str], verdict: Verdict
) -> None:
    reservation = Reservation(task_id="one", token="t", state=state, late=late, until=until)
    assert reservation.judge(children, NOW) is verdict
    assert Reservation.decode(reservation.encode()) == reservation


@pytest.mark.parametrize("data", [b"", b"null", b"[]", b"{}", b"\xff", b'{"task_id":1}', b"x" * 100_000, b"[" * 60_000])
def test_data_of_another_client_is_no_reservation(data: bytes) -> None:
    with pytest.raises(UnreadableQueue):
        Reservation.decode(data)


def test_no_two_keys_have_the_same_path() -> None:
    paths = {path_of("/zklock", key) for key in ("a", "a/b", "a%2Fb", "a%21b", "b")}
    assert len(paths) == 5
    assert {path.rpartition("/")[0] for path in paths} == {"/zklock/!unique"}


def test_long_ids_that_begin_and_end_alike_stay_different() -> None:
    ids = {short_id("x" * 40 + str(number) + "x" * 40) for number in range(2)}
    assert len(ids) == 2
    assert all(len(shown) <= 64 for shown in ids)
    assert short_id("x" * 64) == "x" * 64


def test_a_reservation_of_another_release_is_read_and_kept_whole() -> None:
    old = Reservation.decode(b'{"late": false, "state": "queued", "task_id": "t", "token": "k", "until": null}')
    assert (old.host, old.pid, old.what) == ("", 0, "")
    data = b'{"late": 0, "state": "queued", "task_id": "t", "token": "k", "until": 1, "pid": [], "new": {"a": 1}}'
    newer = replace(Reservation.decode(data), state=State.STARTED)
    assert (newer.host, newer.pid) == ("", 0)
    again = Reservation.decode(newer.encode())
    assert again == newer
    assert again.unknown == b'{"new":{"a":1}}'


def test_a_reservation_names_what_has_sent_its_task(rf: RequestFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    class Handler(BaseHandler):
        def resolve_request(self, request: HttpRequest) -> Any:
            request.resolver_match = match = path("feeds/<secret>/", lambda request, secret: view()).resolve("feeds/x/")
            return match

    def view() -> HttpResponse:
        return HttpResponse(reservations._current_work())

    handler: Any = Handler()
    handler.load_middleware()
    assert handler._get_response(rf.get("/feeds/x/")).content == b"GET /feeds/<secret>/"
    monkeypatch.setattr(sys, "argv", ["/srv/manage.py", "reindex", "--password=x"])
    assert reservations._current_work() == "manage.py reindex"
    monkeypatch.setattr(sys, "argv", ["/usr/bin/gunicorn", "--password=x"])
    assert reservations._current_work() == "gunicorn"
    before = work.begin(work.Work("task shop.update 1", {}))
    try:
        assert reservations._current_work() == "task shop.update 1"
    finally:
        work.begin(before)
