"""The acts of operators on locks: a row each, from which the page of the form, its fields and its messages are made."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from django import forms
from django.db import models
from django.utils.translation import gettext_lazy as _

from django_zklock.core.queue.markers import MOST_PERMITS
from django_zklock.names.template import MAX_KEY, is_key
from django_zklock.report import lazy

MAX_REASON: Final = 300
MAX_TARGETS: Final = 50
"""Holders in one form. More of them would take longer than web servers let a request take."""
MAX_MINUTES: Final = 7 * 24 * 60
MAX_WAIT: Final = 10  # seconds; a page that takes longer seems to hang
_MODEL_FIELDS: Final[Mapping[type[forms.Field], type[models.Field[Any, Any]]]] = {
    forms.FloatField: models.FloatField,
    forms.IntegerField: models.IntegerField,
}
"""The fields whose widgets a theme has by the class of a model's field. Others are text fields."""


@dataclass(frozen=True, slots=True)
class Target:
    """One holder of one lock, or the lock itself."""

    key: str
    guid: str = ""
    token: int = 0

    def __str__(self) -> str:
        return f"{self.guid}:{self.token}:{self.key}"

    @classmethod
    def parse(cls, text: str) -> Target | None:
        """Return the target that this text names, or None if it is not the `str` of a target."""
        match = re.fullmatch("([^:]{0,36}):([0-9]{1,20}):(.*)", text, re.DOTALL)
        return cls(match[3], match[1], int(match[2])) if match and is_key(match[3]) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """Something that an operator can do. `run` gets the target, `by`, `reason` and the values of the fields."""

    permission: str
    label: Any
    text: Any
    """The consequence, for the page."""
    done: Any
    run: Callable[..., object]
    fields: Mapping[str, Callable[[], forms.Field]] = dataclasses.field(default_factory=dict)
    of_holders: bool = True
    """Whether it concerns holders, and not a lock."""

    def form(self, data: Any, overrides: Mapping[Any, Mapping[str, Any]], *, needs_key: bool) -> forms.Form:
        """Return the form. It asks for a key unless the page has one. `overrides` are those of the `ModelAdmin`."""
        fields: dict[str, forms.Field] = {name: make() for name, make in self.fields.items()}
        if needs_key:
            fields = {"key": _key_field(), **fields}
        form: forms.Form = type("ActForm", (forms.Form,), {**fields, "reason": _reason()})(data)
        _use_widgets(form, overrides)
        empty = [field for field in form.fields.values() if field.required and field.initial is None]
        empty[0].widget.attrs["autofocus"] = True
        return form


def _use_widgets(form: forms.Form, overrides: Mapping[Any, Mapping[str, Any]]) -> None:
    """Use the widgets of the admin, or of its theme."""
    for field in form.fields.values():
        widget = overrides.get(_MODEL_FIELDS.get(type(field), models.CharField), {}).get("widget")
        if widget is not None:
            field.widget = forms.Field(required=field.required, widget=widget).widget
        field.widget.attrs["autocomplete"] = "off"


def _reason() -> forms.Field:
    text = _("For the audit log, and for those who wait.")
    return forms.CharField(label=_("Reason"), max_length=MAX_REASON, help_text=text)


def _key_field() -> forms.Field:
    text = _("The key as the list shows it, such as inventory/4711.")
    return forms.CharField(label=_("Lock"), max_length=MAX_KEY, validators=[_check_key], help_text=text)


def _check_key(key: str) -> None:
    if not is_key(key):
        raise forms.ValidationError(_("This cannot be the key of a lock."))


def _ask(target: Target, **why: Any) -> None:
    lazy.operations.request_release(target.key, guid=target.guid, token=target.token, **why)


def _break(target: Target, **why: Any) -> None:
    lazy.operations.break_lock(target.key, guid=target.guid, token=target.token, **why)


def _end(target: Target, **why: Any) -> None:
    lazy.operations.end_hold(target.key, token=target.token, **why)


def _hold(target: Target, *, minutes: float, wait: float, **why: Any) -> None:
    lazy.operations.hold_lock(target.key, seconds=minutes * 60, wait=wait, **why)


def _limit(target: Target, *, permits: int | None, **why: Any) -> None:
    if permits is None:
        lazy.operations.clear_limit(target.key, **why)
    else:
        lazy.operations.set_limit(target.key, permits, **why)


def _minutes() -> forms.Field:
    text = _("Then the hold ends, even if this server is down.")
    return forms.FloatField(label=_("Minutes"), min_value=0.1, max_value=MAX_MINUTES, initial=15, help_text=text)


def _wait() -> forms.Field:
    text = _("For its present holders to end; 10 at most. With 0, the lock must be free now.")
    label = _("Wait in the queue (s)")
    return forms.FloatField(label=label, min_value=0, max_value=MAX_WAIT, initial=MAX_WAIT, help_text=text)


def _permits() -> forms.Field:
    text = _("Empty: no limit but that in the code.")
    label = _("Permits")
    return forms.IntegerField(label=label, required=False, min_value=1, max_value=MOST_PERMITS, help_text=text)


ACTS: Final = {
    "ask": Act(
        permission="request_release_lock",
        label=_("Request release"),
        text=_("The work goes on until it can release. Its process writes its stack to its log."),
        done=_("Asked to release: %(lock)s."),
        run=_ask,
    ),
    "break": Act(
        permission="break_lock",
        label=_("Break"),
        text=_(
            "The holder learns at once that the lock is lost. Its work is aborted if the options of the lock say so."
        ),
        done=_("Broken: %(lock)s."),
        run=_break,
    ),
    "end": Act(
        permission="hold_lock",
        label=_("End the hold"),
        text=_("The next waiter gets the lock at once."),
        done=_("Hold ended: %(lock)s."),
        run=_end,
    ),
    "hold": Act(
        permission="hold_lock",
        label=_("Hold for maintenance"),
        text=_("Later contenders wait. They are shown your name, the end and the reason."),
        done=_("You hold %(lock)s now."),
        run=_hold,
        fields={"minutes": _minutes, "wait": _wait},
        of_holders=False,
    ),
    "limit": Act(
        permission="limit_lock",
        label=_("Set limit"),
        text=_("How many may hold it at a time, in place of the limit in the code. No holder loses its permit."),
        done=_("The limit of %(lock)s was changed."),
        run=_limit,
        fields={"permits": _permits},
        of_holders=False,
    ),
}
