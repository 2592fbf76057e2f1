"""The pages by which a person steps in: break a lock, hold one, and end such a hold. Nothing happens but by POST."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from django.contrib import messages
from django.contrib.admin.utils import quote
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.utils.translation import gettext as _

from django_zklock.dashboard import core, words
from django_zklock.dashboard.forms import BreakForm, EndForm, HoldForm, Target
from django_zklock.dashboard.history import note
from django_zklock.dashboard.permissions import Permissions
from django_zklock.exceptions import LockChangedHands, LockNotAcquired, ZkLockError, ZooKeeperUnavailable
from django_zklock.models import Lock

if TYPE_CHECKING:
    from django_zklock import operations
    from django_zklock.dashboard.detail import Detail

CONFLICT: Final = 409
UNAVAILABLE: Final = 503
MOST_KEYS: Final = 20
"""Locks that one confirmation names; nobody reads a longer one."""
MOST_TARGETS: Final = 100
"""Holders of them: a read-write lock has one for each reader."""


class Steps(Permissions):
    """The pages that change something; a part of `LockAdminMixin`."""

    @abstractmethod
    def url(self, name: str, *args: str) -> str: ...

    @abstractmethod
    def look(self, key: str) -> Detail: ...

    @abstractmethod
    def page(self, request: HttpRequest, name: str, context: dict[str, Any], status: int = 200) -> HttpResponse: ...

    @abstractmethod
    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Lock | None: ...

    def break_view(self, request: HttpRequest) -> HttpResponse:
        """Ask who is to lose which lock and why; then break exactly those."""
        self.demand(self.has_break_permission(request))
        if request.method != "POST":
            return self._confirm(request, request.GET.getlist("key"), BreakForm())
        targets = [Target.parse(text) for text in request.POST.getlist("target")[:MOST_TARGETS]]
        chosen = [target for target in targets if target is not None and self.get_object(request, target.key)]
        form = BreakForm(request.POST)
        if not chosen:
            self.say(request, _("Nobody was chosen, so nothing was broken."), messages.WARNING)
            return HttpResponseRedirect(self.url("changelist"))
        if not form.is_valid():
            return self._confirm(request, [target.key for target in chosen], form)
        left, status = self._break_all(request, chosen, form.cleaned_data["reason"])
        if left:
            return self._confirm(request, [target.key for target in left], form, status)
        return HttpResponseRedirect(self.back_to({target.key for target in chosen}))

    def _break_all(self, request: HttpRequest, targets: list[Target], reason: str) -> tuple[list[Target], int]:
        """Return those that were not broken, and the status that says why."""
        left, status = [], 200
        for number, target in enumerate(targets):
            key = words.clean(target.key)
            try:
                broken = core.operations.break_lock(
                    target.key, guid=target.guid, token=target.token, reason=reason, by=name_of(request)
                )
            except LockChangedHands:
                left.append(target)
                status = status if status == UNAVAILABLE else CONFLICT
                text = _(
                    "The lock '%(lock)s' was not broken: its holder has changed since you looked. See its state now."
                )
                self.say(request, text % {"lock": key}, messages.ERROR)
            except ZkLockError as error:
                status = UNAVAILABLE if isinstance(error, ZooKeeperUnavailable) else CONFLICT
                text = _("The lock '%(lock)s' may not be broken: %(error)s") % {
                    "lock": key,
                    "error": words.clean(error),
                }
                self.say(request, text, messages.ERROR)
                left.append(target)
                if isinstance(error, ZooKeeperUnavailable):
                    return [*left, *targets[number + 1 :]], status  # the others would take as long to fail
            else:
                self._broken(request, target, broken, reason)
        return left, status

    def _broken(self, request: HttpRequest, target: Target, broken: operations.Broken, reason: str) -> None:
        holder = broken.holder
        who = f"{words.clean(holder.host) or '?'} pid {holder.pid} {words.clean(holder.what)}".strip()
        message = _("Broken: %(reason)s (held by %(who)s, token %(token)d, guid %(guid)s)")
        values = {"reason": reason, "who": who, "token": target.token, "guid": words.clean(target.guid, 40)}
        note(request.user, Lock(key=target.key), message % values)
        text = _("The lock '%(lock)s' was taken from %(who)s, who is being told that it is lost.")
        self.say(request, text % {"lock": words.clean(target.key), "who": who}, messages.SUCCESS)

    def _confirm(self, request: HttpRequest, keys: Iterable[str], form: BreakForm, status: int = 200) -> HttpResponse:
        """Show who holds these locks now; each is named by what the form carries."""
        wanted = [key for key in dict.fromkeys(keys) if self.get_object(request, key) is not None][:MOST_KEYS]
        if not wanted:
            self.say(request, _("Choose the locks to break in the list."), messages.WARNING)
            return HttpResponseRedirect(self.url("changelist"))
        locks: list[Detail] = []
        for key in wanted:
            locks.append(self.look(key))
            if locks[-1].problem:
                break  # the others would take as long to fail
        problem = locks[-1].problem
        holders = 0 if problem else sum(len(lock.holders) for lock in locks)
        context = {"title": _("Break locks"), "locks": locks, "problem": problem, "holders": holders}
        if holders:
            context["form"] = form
        return self.page(request, "break", context, UNAVAILABLE if problem else status)

    def hold_view(self, request: HttpRequest) -> HttpResponse:
        """Take a lock for a person, with a reason and an end."""
        self.demand(self.has_hold_permission(request))
        if request.method != "POST":
            return self._ask_to_hold(request, HoldForm(initial={"key": request.GET.get("key", "")[:1000]}))
        form = HoldForm(request.POST)
        if not form.is_valid():
            return self._ask_to_hold(request, form)
        given = form.cleaned_data
        lock = self.get_object(request, given["key"])
        if lock is None:
            form.add_error("key", _("This cannot be the key of a lock."))
            return self._ask_to_hold(request, form)
        try:
            held = core.operations.hold_lock(
                lock.key,
                seconds=given["minutes"] * 60,
                reason=given["reason"],
                by=name_of(request),
                wait=given["wait"],
            )
        except (ZkLockError, ValueError) as error:
            form.add_error(None, words.clean(error))
            status = CONFLICT if isinstance(error, LockNotAcquired) else 200
            return self._ask_to_hold(request, form, UNAVAILABLE if isinstance(error, ZooKeeperUnavailable) else status)
        values = {"until": f"{held.until:%Y-%m-%d %H:%M:%S} UTC", "reason": given["reason"], "token": held.token}
        note(request.user, lock, _("Held until %(until)s: %(reason)s (token %(token)d)") % values)
        text = _("The lock '%(lock)s' is yours until %(until)s.")
        self.say(request, text % {**values, "lock": words.clean(lock.key)}, messages.SUCCESS)
        return HttpResponseRedirect(self.back_to({lock.key}))

    def _ask_to_hold(self, request: HttpRequest, form: HoldForm, status: int = 200) -> HttpResponse:
        return self.page(request, "hold", {"title": _("Hold a lock"), "form": form}, status)

    def end_view(self, request: HttpRequest) -> HttpResponse:
        """End the hold of a person before its time."""
        self.demand(self.has_hold_permission(request))
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        form = EndForm(request.POST)
        lock = self.get_object(request, request.POST.get("key", ""))
        if lock is None or not form.is_valid():
            self.say(request, _("There is no such hold."), messages.ERROR)
            return HttpResponseRedirect(self.url("changelist"))
        given = form.cleaned_data
        try:
            core.operations.end_hold(lock.key, token=given["token"], by=name_of(request), reason=given["reason"])
        except LockChangedHands:
            self.say(request, _("This hold has ended already."), messages.WARNING)
        except ZkLockError as error:
            self.say(request, words.clean(error), messages.ERROR)
        else:
            note(request.user, lock, _("Ended the hold with token %(token)d") % {"token": given["token"]})
            self.say(request, _("The hold has ended."), messages.SUCCESS)
        return HttpResponseRedirect(self.back_to({lock.key}))

    def back_to(self, keys: set[str]) -> str:
        """Return the page to go to after something was done to these locks."""
        return self.url("change", quote(keys.pop())) if len(keys) == 1 else self.url("changelist")

    def say(self, request: HttpRequest, text: str, level: int) -> None:
        """Have the next page say it."""
        self.message_user(request, text, level, fail_silently=True)  # type: ignore[attr-defined]


def name_of(request: HttpRequest) -> str:
    """Return who does it, for the audit."""
    return words.clean(request.user.get_username(), 150)
