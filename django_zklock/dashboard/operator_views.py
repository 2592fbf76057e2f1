"""The views to hold a lock as an operator, and to set the limit of a semaphore."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _

from django_zklock.dashboard import lazy
from django_zklock.dashboard.formatting import MAX_ERROR, clean, limit_text, time_text
from django_zklock.dashboard.forms import HoldForm, LimitForm
from django_zklock.dashboard.pages import CONFLICT, UNAVAILABLE, LockPages, user_name
from django_zklock.exceptions import ZkLockError, ZooKeeperUnavailable
from django_zklock.names.template import MAX_KEY, is_key


class OperatorViews(LockPages):
    """Hold a lock, set a limit; a part of `LockAdminMixin`."""

    def hold_view(self, request: HttpRequest) -> HttpResponse:
        """Hold a lock for the user, with a reason and an end."""
        self.require(self.has_hold_permission(request))
        form = HoldForm(request.POST or None, initial={"key": request.GET.get("key", "")[:MAX_KEY]})
        status = 200
        if form.is_valid():
            given = form.cleaned_data
            key, seconds, by = given["key"], given["minutes"] * 60, user_name(request)
            try:
                hold = lazy.operations.hold_lock(
                    key, seconds=seconds, reason=given["reason"], by=by, wait=given["wait"]
                )
            except (ZkLockError, ValueError) as error:
                status = _refuse(form, error)
            else:
                text = _("You hold the lock '%(lock)s' until %(until)s.")
                values = {"lock": clean(key), "until": time_text(hold.until)}
                self.show_message(request, text % values, messages.SUCCESS)
                return self.redirect_to({key})
        return self.page(request, "hold", {"title": _("Hold a lock"), "form": form}, status)

    def limit_view(self, request: HttpRequest) -> HttpResponse:
        """Set the limit of a semaphore for all processes, or clear it. Show the present one."""
        self.require(self.has_limit_permission(request))
        key, clear, status = request.GET.get("key", ""), "clear" in request.POST, 200
        form = LimitForm(request.POST or None, clear=clear, initial={"key": key if is_key(key) else ""})
        if form.is_valid():
            given = form.cleaned_data
            try:
                self._change_limit(request, given["key"], None if clear else given["permits"], given["reason"])
            except (ZkLockError, ValueError) as error:
                status = _refuse(form, error)
            else:
                return self.redirect_to({given["key"]})
        key = form.cleaned_data.get("key", "") if form.is_bound else form.initial["key"]
        context: dict[str, Any] = {"title": _("Set a limit"), "form": form, "key": key}
        if key and status != UNAVAILABLE:
            try:
                limit = lazy.operations.limit_of(key, reply_timeout=self.reply_timeout)
            except (ZkLockError, ValueError) as error:
                context["problem"] = clean(error, MAX_ERROR)
                status = UNAVAILABLE if isinstance(error, ZooKeeperUnavailable) else status
            else:
                context["limit"] = limit and limit_text(limit)
        return self.page(request, "limit", context, status)

    def _change_limit(self, request: HttpRequest, key: str, limit: int | None, reason: str) -> None:
        by = user_name(request)
        values = {"limit": limit, "lock": clean(key)}
        if limit is not None:
            lazy.operations.set_limit(key, limit, reason=reason, by=by)
            text, level = _("The limit of %(lock)s is now %(limit)d, for all processes."), messages.SUCCESS
        elif lazy.operations.clear_limit(key, reason=reason, by=by):
            text = _("The limit of %(lock)s was cleared. Each process uses the limit in its code again.")
            level = messages.SUCCESS
        else:
            text, level = _("No limit was set for the lock '%(lock)s'."), messages.WARNING
        self.show_message(request, text % values, level)


def _refuse(form: forms.Form, error: Exception) -> int:
    """Show in a form why nothing was done; return the status of the page."""
    form.add_error(None, clean(error, MAX_ERROR))
    return UNAVAILABLE if isinstance(error, ZooKeeperUnavailable) else CONFLICT
