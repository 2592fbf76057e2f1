"""The views to send a release request, and to set the limit of a semaphore."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed
from django.utils.translation import gettext as _

from django_zklock.dashboard import lazy
from django_zklock.dashboard.formatting import MAX_ERROR, clean, holder_text, limit_text
from django_zklock.dashboard.forms import LimitForm, ReleaseRequestForm, Target
from django_zklock.dashboard.pages import CONFLICT, UNAVAILABLE, LockPages, user_name
from django_zklock.exceptions import LockChangedHands, ZkLockError, ZooKeeperUnavailable
from django_zklock.queue.names import is_key


class LimitViews(LockPages):
    """Request a release, set a limit; a part of `LockAdminMixin`."""

    def request_release_view(self, request: HttpRequest) -> HttpResponse:
        """Send a release request to one holder, which continues its work until it releases."""
        self.require(self.has_request_release_permission(request))
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        form = ReleaseRequestForm(request.POST)
        target = Target.parse(request.POST.get("target", ""))
        if target is None:
            self.show_message(request, _("No holder was chosen, so none was asked."), messages.WARNING)
            return self.redirect_to()
        key = target.key
        if not form.is_valid():
            self.show_message(request, _("The holder was not asked: please give a reason."), messages.ERROR)
            return self.redirect_to({key})
        reason = form.cleaned_data["reason"]
        try:
            asked = lazy.operations.request_release(
                key, reason, by=user_name(request), guid=target.guid, token=target.token
            )
        except LockChangedHands:
            text = _("The holder was not asked: %(lock)s has changed hands.")
            self.show_message(request, text % {"lock": clean(key)}, messages.ERROR)
        except (ZkLockError, ValueError) as error:
            self.show_message(request, clean(error, MAX_ERROR), messages.ERROR)
        else:
            for holder in asked.holders:
                # The host is not the first word, as Django capitalizes the first letter of a message.
                text = _("Release of %(lock)s requested: %(who)s. Its work goes on until it can release.")
                values = {"lock": clean(key), "who": holder_text(holder)}
                self.show_message(request, text % values, messages.SUCCESS)
        return self.redirect_to({key})

    def limit_view(self, request: HttpRequest) -> HttpResponse:
        """Set the limit of a semaphore for all processes, or clear it."""
        self.require(self.has_limit_permission(request))
        if request.method != "POST":
            key = request.GET.get("key", "")
            key = key if is_key(key) else ""
            return self._limit_page(request, LimitForm(initial={"key": key}), key)
        clear = "clear" in request.POST
        form = LimitForm(request.POST, clear=clear)
        if not form.is_valid():
            return self._limit_page(request, form, form.cleaned_data.get("key", ""))
        given = form.cleaned_data
        key = given["key"]
        try:
            self._change_limit(request, key, None if clear else given["permits"], given["reason"])
        except (ZkLockError, ValueError) as error:
            form.add_error(None, clean(error, MAX_ERROR))
            if isinstance(error, ZooKeeperUnavailable):
                return self._limit_page(request, form, "", UNAVAILABLE)
            return self._limit_page(request, form, key, CONFLICT)
        return self.redirect_to({key})

    def _change_limit(self, request: HttpRequest, key: str, limit: int | None, reason: str) -> None:
        by = user_name(request)
        values = {"limit": limit, "lock": clean(key)}
        if limit is not None:
            lazy.operations.set_limit(key, limit, reason=reason, by=by)
            text = _("The limit of %(lock)s is now %(limit)d, for all processes.")
            self.show_message(request, text % values, messages.SUCCESS)
        elif lazy.operations.clear_limit(key, reason=reason, by=by):
            text = _("The limit of %(lock)s was cleared. Each process uses the limit in its code again.")
            self.show_message(request, text % values, messages.SUCCESS)
        else:
            self.show_message(request, _("No limit was set for the lock '%(lock)s'.") % values, messages.WARNING)

    def _limit_page(self, request: HttpRequest, form: LimitForm, key: str, status: int = 200) -> HttpResponse:
        """Return the form, with the present limit of the lock if there is a key."""
        context: dict[str, Any] = {"title": _("Set a limit"), "form": form, "key": key, "limit": None, "problem": ""}
        if key:
            try:
                limit = lazy.operations.limit_of(key, reply_timeout=self.reply_timeout)
            except (ZkLockError, ValueError) as error:
                context["problem"] = clean(error, MAX_ERROR)
                status = UNAVAILABLE if isinstance(error, ZooKeeperUnavailable) else status
            else:
                context["limit"] = limit and limit_text(limit)
        return self.page(request, "limit", context, status)
