"""The page of the reservations in the admin: list, search, and delete one."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.http import urlencode
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_zklock.contrib.celery.unique import listing, record
from django_zklock.contrib.celery.unique.listing import ReservationInfo, Reservations
from django_zklock.dashboard.forms import ReasonForm
from django_zklock.dashboard.views import UNAVAILABLE, refuse, user_name
from django_zklock.exceptions import ZkLockError, ZooKeeperUnavailable
from django_zklock.names.template import is_key

if TYPE_CHECKING:
    from django_zklock.dashboard.views import LockViews

MOST_LINKS: Final = 5
"""Reservations that the page of a lock names."""
STATE_LABELS: Final = {
    "publishing": gettext_lazy("Being sent"),
    "queued": gettext_lazy("Queued"),
    "started": gettext_lazy("Started"),
    "dead": gettext_lazy("Dead"),
    "unreadable": gettext_lazy("Cannot be read"),
}


def links(words: str = "", *, lock: str | None = None, reply_timeout: float) -> list[tuple[str, str]]:
    """Return texts about the reservations with these words, or of a lock, each with the query of its page."""
    most = 0 if lock is None else MOST_LINKS  # a search only counts them
    listed = listing.read(words, lock=lock, reply_timeout=reply_timeout, most=most)
    if lock is None:
        return [(listing.found_text(listed.matching), urlencode({"q": words}))] if listed.matching else []
    return [(listing.sentence(info), urlencode({"key": info.key})) for info in listed.shown]


def view(pages: LockViews, request: HttpRequest) -> HttpResponse:
    """
    Show all reservations, those with some words, or one of them.

    A user who may break locks may delete the one. The form has its token, so that no later one is deleted.
    """
    pages.require(pages.has_view_permission(request))
    key, words = request.GET.get("key", ""), request.GET.get("q", "")
    listed = _read(key, pages.reply_timeout) if key else listing.read(words, reply_timeout=pages.reply_timeout)
    context: dict[str, Any] = {
        "title": _("Reservations of unique tasks"),
        "rows": [_row(info) for info in listed.shown],
        "listed": listed,
        "words": words,
        "key": key,
        "problem": listed.problem,
    }
    status = UNAVAILABLE if listed.problem else 200
    if key and listed.shown and pages.has_break_permission(request):
        info = listed.shown[0]
        form = ReasonForm(request.POST or None)
        if form.is_valid():
            try:
                _delete(pages, request, info, form.cleaned_data["reason"])
            except ZkLockError as error:
                status = refuse(form, error)
            else:
                return HttpResponseRedirect(pages.url("unique"))
        context |= {"form": form, "token": request.POST.get("token", info.token)}
    return pages.page(request, "reservations", context, status)


def _read(key: str, reply_timeout: float) -> Reservations:
    try:
        info = listing.read_one(key, reply_timeout=reply_timeout) if record.is_key(key) else None
    except ZooKeeperUnavailable as error:
        return Reservations(problem=str(error))
    return Reservations(shown=() if info is None else (info,))


def _delete(pages: LockViews, request: HttpRequest, info: ReservationInfo, reason: str) -> None:
    shown = replace(info, token=request.POST.get("token", ""))  # the one that the user has seen
    listing.delete(shown, reason=reason, by=user_name(request), reply_timeout=pages.reply_timeout)
    text = _("The reservation of task %(task)s was deleted. The next call sends the task.")
    pages.show_message(request, text % {"task": info.task}, messages.SUCCESS)


def _row(info: ReservationInfo) -> dict[str, Any]:
    return {
        "info": info,
        "state": STATE_LABELS[info.state],
        "lock": info.lock if is_key(info.lock) else "",
        "query": urlencode({"key": info.key}),
    }
