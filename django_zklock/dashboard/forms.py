"""The forms of the pages."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from django import forms
from django.db import models
from django.utils.html import escape
from django.utils.translation import gettext_lazy as _

from django_zklock.core.queue.markers import MOST_PERMITS
from django_zklock.names.template import MAX_KEY, is_key
from django_zklock.report.formatting import clean

MAX_REASON: Final = 300
MAX_MINUTES: Final = 7 * 24 * 60
MAX_WAIT: Final = 10  # seconds; a page that takes longer seems to hang
MAX_TARGETS: Final = 50
"""Holders in one form. More of them would take longer than web servers let a request take."""
TIMES: Final = ((15, _("For 15 min")), (60, _("For 1 h")), (480, _("For 8 h")))
"""Minutes for which an incident can be acknowledged. The first is that of Enter."""
_NO_COMPLETION: Final = forms.TextInput(attrs={"autocomplete": "off"})
_MODEL_FIELDS: Final[dict[type[forms.Field], Any]] = {
    forms.FloatField: models.FloatField,
    forms.IntegerField: models.IntegerField,
}


@dataclass(frozen=True, slots=True)
class Target:
    """The subject of a confirmation: one holder of one lock."""

    key: str
    guid: str
    token: int

    def __str__(self) -> str:
        return f"{self.guid}:{self.token}:{self.key}"

    @classmethod
    def parse(cls, text: str) -> Target | None:
        """Return the target that this text names, or None if it is not the `str` of a target."""
        match = re.fullmatch("([^:]{1,36}):([0-9]{1,20}):(.*)", text, re.DOTALL)
        if match is None or not is_key(match[3]):
            return None
        return cls(match[3], match[1], int(match[2]))


def _check_key(key: str) -> None:
    if not is_key(key):
        raise forms.ValidationError(_("This cannot be the key of a lock."))


class _ReasonField(forms.CharField):
    def __init__(self, **kwargs: Any) -> None:
        super().__init__(max_length=MAX_REASON, widget=_NO_COMPLETION, label=_("Reason"), **kwargs)

    def clean(self, value: Any) -> str:
        return clean(" ".join(super().clean(value).split()), MAX_REASON)


class ReasonForm(forms.Form):
    """Why to act on the ticked holders. If there is a `word`, the user types it to confirm a break."""

    reason = _ReasonField(help_text=_("For the audit log, the history, and the holders."))
    confirm = forms.CharField(label=_("Confirmation"), required=False, widget=_NO_COMPLETION)

    def __init__(self, *args: Any, word: str = "", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._word = word
        help_text = _("To break the ticked locks, type: %(word)s") % {"word": clean(word)}
        self.fields["confirm"].help_text = escape(help_text)  # the admin and its themes show it as safe
        if not word:
            del self.fields["confirm"]

    def clean_confirm(self) -> str:
        """Return what was typed. Raises `ValidationError` unless it is the word."""
        typed: str = self.cleaned_data["confirm"]
        if typed.strip() != self._word:
            raise forms.ValidationError(_("Nothing was broken. Type: %(word)s"), params={"word": clean(self._word)})
        return typed


class _LockForm(forms.Form):
    """A form about one lock."""

    key = forms.CharField(
        label=_("Lock"),
        max_length=MAX_KEY,
        widget=_NO_COMPLETION,
        help_text=_("The key as the list shows it, such as inventory/4711."),
        validators=[_check_key],
    )


class HoldForm(_LockForm):
    """Which lock to hold, for how long, and why."""

    minutes = forms.FloatField(
        label=_("Minutes"),
        min_value=0.1,
        max_value=MAX_MINUTES,
        initial=15,
        widget=forms.NumberInput(attrs={"list": "zklock-minutes"}),
        help_text=_("Then the hold ends, even if this server is down."),
    )
    wait = forms.FloatField(
        label=_("Wait in the queue (s)"),
        min_value=0,
        max_value=MAX_WAIT,
        initial=MAX_WAIT,
        help_text=_("For its present holders to end; 10 at most. With 0, the lock must be free now."),
    )
    reason = _ReasonField(help_text=_("All waiters are shown the reason."))


class AcknowledgeForm(forms.Form):
    """For how long to acknowledge an incident, by the pressed button, and why."""

    minutes = forms.FloatField(min_value=0, max_value=MAX_MINUTES, widget=forms.HiddenInput)
    reason = _ReasonField(help_text=_("For the audit log, the history, and the next operator who looks."))


class LimitForm(_LockForm):
    """The limit of a semaphore, and why to set it. To clear the limit, no number is needed."""

    permits = forms.IntegerField(
        label=_("Permits"),
        min_value=1,
        max_value=MOST_PERMITS,
        help_text=_("How many may hold it at a time, in place of the limit in the code. No holder loses its permit."),
    )
    reason = _ReasonField(help_text=_("For the audit log and the history. It is shown with the limit."))

    def __init__(self, *args: Any, clear: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["permits"].required = not clear


def use_widgets(form: forms.Form, overrides: Mapping[Any, Mapping[str, Any]]) -> None:
    """Use the widgets of the admin, or of its theme, for the fields: those in `formfield_overrides`."""
    for field in form.fields.values():
        widget = overrides.get(_MODEL_FIELDS.get(type(field), models.CharField), {}).get("widget")
        if widget is not None and not field.widget.is_hidden:
            attrs = field.widget.attrs
            field.widget = forms.Field(required=field.required, widget=widget).widget
            field.widget.attrs.update(attrs)


def focus_first_error(form: forms.Form) -> None:
    """Let the browser focus the first field with an error, so that screen readers read the error."""
    for name, field in form.fields.items():
        if name in form.errors and not field.widget.is_hidden:
            field.widget.attrs["autofocus"] = True
            return


