"""The views to hold a lock as an operator, and to set the limit of a semaphore."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _

from django_zklock.dashboard import lazy
from django_zklock.dashboard.formatting import MAX_ERROR, clean, limit_text, time_text
from django_zklock.dashboard.forms import HoldForm, LimitForm
from django_zklock.dashboard.pages import CONFLICT, UNAVAILABLE, LockPages, user_name
from django_zklock.exceptions import LockNotAcquired, ZkLockError, ZooKeeperUnavailable
from django_zklock.queue.names import is_key


class OperatorViews(LockPages):
    """Hold a lock, set a limit; a part of `LockAdminMixin`."""

    def hold_view(self, request: HttpRequest) -> HttpResponse:
        """Hold a lock for the user, with a reason and an end."""
        self.require(self.has_hold_permission(request))
        if request.method != "POST":
            return self._hold_page(request, HoldForm(initial={"key": request.GET.get("key", "")[:1000]}))
        form = HoldForm(request.POST)
        if not form.is_valid():
            return self._hold_page(request, form)
        given = form.cleaned_data
        key = given["key"]
        try:
            hold = lazy.operations.hold_lock(
                key, seconds=given["minutes"] * 60, reason=given["reason"], by=user_name(request), wait=given["wait"]
            )
        except (ZkLockError, ValueError) as error:
            form.add_error(None, clean(error, MAX_ERROR))
            status = CONFLICT if isinstance(error, LockNotAcquired) else 200
            return self._hold_page(request, form, UNAVAILABLE if isinstance(error, ZooKeeperUnavailable) else status)
        text = _("You hold the lock '%(lock)s' until %(until)s.")
        values = {"lock": clean(key), "until": time_text(hold.until)}
        self.show_message(request, text % values, messages.SUCCESS)
        return self.redirect_to({key})

    def _hold_page(self, request: HttpRequest, form: HoldForm, status: int = 200) -> HttpResponse:
        return self.page(request, "hold", {"title": _("Hold a lock"), "form": form}, status)

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
