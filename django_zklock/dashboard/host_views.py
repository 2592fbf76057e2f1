"""The page of a host: all that its processes hold and wait for, to break it or to request its release at once."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.http import urlencode
from django.utils.translation import gettext as _

from django_zklock.dashboard import lazy, past
from django_zklock.dashboard.break_views import BreakViews
from django_zklock.dashboard.detail import row_of
from django_zklock.dashboard.formatting import clean, host_and_pid
from django_zklock.dashboard.forms import MAX_TARGETS, BulkForm, Target

if TYPE_CHECKING:
    from django_zklock.dashboard.detail import Row
    from django_zklock.inspection import LockInfo


class HostViews(BreakViews):
    """Act on all locks of a host, or on many chosen ones; a part of `LockAdminMixin`."""

    def host_view(self, request: HttpRequest) -> HttpResponse:
        """Show the locks of a host. A POST breaks exactly the ticked ones, or requests their release."""
        self.require(self.has_view_permission(request))
        if request.method != "POST":
            return self.many_page(request)
        breaks = "break" in request.POST
        self.require(self.has_break_permission(request) if breaks else self.has_request_release_permission(request))
        chosen = Target.parse_all(request.POST.getlist("target"))
        keys = {target.key for target in chosen}
        host, pid = _process(request)
        form = BulkForm(request.POST, word=host or str(len(chosen)), breaks=breaks)
        if not chosen:
            self.show_message(request, _("No holder was chosen, so nothing was done."), messages.WARNING)
        elif not form.is_valid():
            return self.many_page(request, keys, form)
        else:
            operation = lazy.operations.break_lock if breaks else lazy.operations.request_release
            results = self.act_on(request, chosen, operation, form.cleaned_data["reason"])
            self.report(request, results, broken=breaks)
            if results.remaining:
                return self.many_page(request, {target.key for target in results.remaining}, status=results.status)
        return HttpResponseRedirect(self.host_url(host, pid) if host else self.url("changelist"))

    def host_url(self, host: str, pid: int = 0) -> str:
        """Return the address of the page of a host, or of one of its processes."""
        return f"{self.url('host')}?{urlencode({'host': host, 'pid': pid or ''})}"

    def many_page(
        self, request: HttpRequest, keys: Collection[str] = (), form: BulkForm | None = None, status: int = 200
    ) -> HttpResponse:
        """Show the locks of the host that the request names, or else the locks with these keys, with a form."""
        host, pid = _process(request)
        if not host and not keys:
            return self.redirect_to()
        # Not shared: this page does not refresh itself. Its time is better spent on all locks than on their waiters.
        snapshot = lazy.inspection.snapshot(reply_timeout=self.reply_timeout, max_age=0.0, max_locks=None)
        holds: list[tuple[LockInfo, Row]] = []
        waits: list[tuple[LockInfo, Row]] = []
        for lock in snapshot.locks:
            for number, contender in enumerate((*lock.holders, *lock.waiters), 1 - len(lock.holders)):
                is_own = contender.host == host and pid in {0, contender.pid} if host else lock.key in keys
                if is_own and (host or contender.holds):
                    group = holds if contender.holds else waits
                    group.append((lock, row_of(lock.key, contender, number)))
        holds.sort(key=lambda held: (-held[0].waiting, -held[1].info.certain_duration))
        tokens = {row.info.token for _lock, row in holds}
        shown = [row.target for _lock, row in holds[:MAX_TARGETS]]
        first = request.method != "POST" or "target" not in request.POST  # from a link, or from the list
        answered = snapshot.connection.state == "connected" and snapshot.age < 1
        title = host_and_pid(host, pid) if pid else clean(host) or _("Chosen locks")
        here = self.host_url(host, pid) if host else self.url("changelist")
        context: dict[str, Any] = {
            "title": title,
            "host": host,
            "pid": pid,
            "holds": holds[:MAX_TARGETS],
            "hidden": len(holds) - len(shown),
            "waits": waits,
            "ticked": shown if first else [] if form is None else request.POST.getlist("target"),
            "snapshot": snapshot,
            "losses": past.losses_of(host, pid, tokens) if host else None,
            "form_url": self.url("host"),
            "host_url": self.host_url(host) if pid else "",
            "back_url": here if status != 200 else "",
            "may_break": self.has_break_permission(request),
            "may_ask": self.has_request_release_permission(request),
        }
        if holds and answered and (context["may_break"] or context["may_ask"]):
            context["form"] = form or BulkForm(word=host or str(len(shown)))
            if not context["may_break"]:
                del context["form"].fields["confirm"]
        return self.page(request, "host", context, status)


def _process(request: HttpRequest) -> tuple[str, int]:
    """Return the host and the process that the request names; empty or 0 without."""
    given = request.POST if request.method == "POST" else request.GET
    pid = given.get("pid", "")
    return given.get("host", "").strip(), int(pid) if pid.isascii() and pid.isdecimal() and len(pid) < 10 else 0
