"""The pages by which a person asks a holder to let go, or sets how many permits a semaphore has."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.utils.translation import gettext as _

from django_zklock.dashboard import core, words
from django_zklock.dashboard.forms import LimitForm, ReleaseRequestForm, Target
from django_zklock.dashboard.history import note
from django_zklock.dashboard.steps import CONFLICT, UNAVAILABLE, Steps, name_of
from django_zklock.exceptions import LockChangedHands, ZkLockError, ZooKeeperUnavailable
from django_zklock.models import Lock


class Sharing(Steps):
    """The pages about holders that go on, or share; a part of `LockAdminMixin`."""

    patience: float

    def request_release_view(self, request: HttpRequest) -> HttpResponse:
        """Send a release request to one holder. Its work goes on until it releases."""
        self.demand(self.has_request_release_permission(request))
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        form = ReleaseRequestForm(request.POST)
        target = Target.parse(request.POST.get("target", ""))
        lock = self.get_object(request, target.key) if target is not None else None
        if target is None or lock is None:
            self.say(request, _("Nobody was chosen, so nobody was asked."), messages.WARNING)
            return HttpResponseRedirect(self.url("changelist"))
        if not form.is_valid():
            self.say(request, _("Nobody was asked: please say why."), messages.ERROR)
            return HttpResponseRedirect(self.back_to({lock.key}))
        reason = form.cleaned_data["reason"]
        shown = words.clean(lock.key)
        try:
            asked = core.operations.request_release(
                lock.key, reason, by=name_of(request), guid=target.guid, token=target.token
            )
        except LockChangedHands:
            text = _("Nobody was asked: %(lock)s changed hands since you looked.")
            self.say(request, text % {"lock": shown}, messages.ERROR)
        except ZkLockError as error:
            self.say(request, words.clean(error), messages.ERROR)
        else:
            for holder in asked.holders:
                who = f"{words.clean(holder.host) or '?'} · pid {holder.pid} · {words.clean(holder.what)}".strip()
                values = {"reason": reason, "who": who, "token": holder.token, "guid": words.clean(holder.guid, 40)}
                message = _("Release requested: %(reason)s (held by %(who)s, token %(token)d, guid %(guid)s)")
                note(request.user, lock, message % values)
                # Not with the host first: Django writes the first letter of a message large.
                text = _("Release of %(lock)s requested: %(who)s. Its work goes on until it can release.")
                self.say(request, text % {"lock": shown, "who": who}, messages.SUCCESS)
        return HttpResponseRedirect(self.back_to({lock.key}))

    def limit_view(self, request: HttpRequest) -> HttpResponse:
        """Set how many permits a semaphore has, for all processes, or have the limit in their code count again."""
        self.demand(self.has_limit_permission(request))
        if request.method != "POST":
            lock = self.get_object(request, request.GET.get("key", ""))
            return self._ask_for_limit(request, LimitForm(initial={"key": lock.key if lock else ""}), lock)
        clear = "clear" in request.POST
        form = LimitForm(request.POST, clear=clear)
        if not form.is_valid():
            return self._ask_for_limit(request, form, self.get_object(request, request.POST.get("key", "")))
        given = form.cleaned_data
        lock = self.get_object(request, given["key"])
        if lock is None:
            form.add_error("key", _("This cannot be the key of a lock."))
            return self._ask_for_limit(request, form, None)
        try:
            self._change_limit(request, lock, None if clear else given["permits"], given["reason"])
        except (ZkLockError, ValueError) as error:
            form.add_error(None, words.clean(error))
            away = isinstance(error, ZooKeeperUnavailable)
            return self._ask_for_limit(request, form, None if away else lock, UNAVAILABLE if away else CONFLICT)
        return HttpResponseRedirect(self.back_to({lock.key}))

    def _change_limit(self, request: HttpRequest, lock: Lock, limit: int | None, reason: str) -> None:
        shown = words.clean(lock.key)
        by = name_of(request)
        if limit is not None:
            core.operations.set_limit(lock.key, limit, reason=reason, by=by)
            values = {"limit": limit, "reason": reason, "lock": shown}
            note(request.user, lock, _("Limit set to %(limit)d: %(reason)s") % values)
            self.say(
                request, _("The limit of %(lock)s is %(limit)d now, for all processes.") % values, messages.SUCCESS
            )
        elif core.operations.clear_limit(lock.key, reason=reason, by=by):
            note(request.user, lock, _("Limit cleared: %(reason)s") % {"reason": reason})
            text = _("The limit of %(lock)s was cleared: the one in the code of each process counts again.")
            self.say(request, text % {"lock": shown}, messages.SUCCESS)
        else:
            self.say(request, _("The lock '%(lock)s' had no limit that was set.") % {"lock": shown}, messages.WARNING)

    def _ask_for_limit(
        self, request: HttpRequest, form: LimitForm, lock: Lock | None, status: int = 200
    ) -> HttpResponse:
        context: dict[str, Any] = {"title": _("Set a limit"), "form": form, "lock": lock, "limit": None, "problem": ""}
        if lock is not None:
            try:
                found = core.operations.limit_of(lock.key, patience=self.patience)
            except (ZkLockError, ValueError) as error:
                context["problem"] = words.clean(error)
                status = UNAVAILABLE if isinstance(error, ZooKeeperUnavailable) else status
            else:
                context["limit"] = found and words.limit_set(found)
        return self.page(request, "limit", context, status)
