"""The forms of the dashboard: what is asked before a person does something to a lock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from django import forms
from django.db import models
from django.utils.translation import gettext_lazy as _

from django_zklock.conf.options import MOST_PERMITS
from django_zklock.dashboard import words
from django_zklock.models import LONGEST_KEY

if TYPE_CHECKING:
    from collections.abc import Mapping

LONGEST_REASON: Final = 300
LONGEST_HOLD: Final = 7 * 24 * 60  # minutes
LONGEST_WAIT: Final = 10  # seconds; a page that takes longer is one that hangs
_LONGEST_TARGET: Final = 36 + 20 + LONGEST_KEY + 2
_MODEL_FIELDS: Final[dict[type[forms.Field], Any]] = {
    forms.FloatField: models.FloatField,
    forms.IntegerField: models.IntegerField,
}


@dataclass(frozen=True, slots=True)
class Target:
    """Exactly whom a confirmation is about: one holder of one lock."""

    key: str
    guid: str
    token: int

    def __str__(self) -> str:
        return f"{self.guid}:{self.token}:{self.key}"

    @classmethod
    def parse(cls, text: str) -> Target | None:
        """Return the target that `str` made this text of, or None if none did."""
        guid, _, rest = text.partition(":")
        token, _, key = rest.partition(":")
        if len(text) > _LONGEST_TARGET or not (guid and key and token.isascii() and token.isdigit()):
            return None
        return cls(key, guid, int(token[:20]))


class _Key(forms.CharField):
    def __init__(self) -> None:
        super().__init__(
            label=_("Lock"),
            max_length=LONGEST_KEY,
            widget=forms.TextInput(attrs={"autocomplete": "off"}),
            help_text=_("Its key, as the list shows it, such as inventory/4711."),
        )


class _Reason(forms.CharField):
    def __init__(self, **kwargs: Any) -> None:
        widget = forms.TextInput(attrs={"autocomplete": "off"})
        super().__init__(max_length=LONGEST_REASON, widget=widget, label=_("Reason"), **kwargs)

    def clean(self, value: Any) -> str:
        return words.clean(" ".join(super().clean(value).split()), LONGEST_REASON)


class BreakForm(forms.Form):
    """Why locks are to be broken."""

    reason = _Reason(help_text=_("Goes to the audit log, to the history and to whoever loses the lock."))


class HoldForm(forms.Form):
    """Which lock a person wants, how long and what for."""

    key = _Key()
    minutes = forms.FloatField(
        label=_("Minutes"),
        min_value=0.1,
        max_value=LONGEST_HOLD,
        initial=15,
        help_text=_("After this time it ends by itself, whatever becomes of this server."),
    )
    wait = forms.FloatField(
        label=_("Seconds to wait"),
        min_value=0,
        max_value=LONGEST_WAIT,
        initial=0,
        help_text=_("It queues like anybody else; 0 asks only whether the lock is free now."),
    )
    reason = _Reason(help_text=_("Everybody who waits for the lock is shown it."))


class ReleaseRequestForm(forms.Form):
    """A release request: its reason."""

    reason = _Reason()


class LimitForm(forms.Form):
    """How many permits a semaphore is to have, and why; to clear that, no number is needed."""

    key = _Key()
    permits = forms.IntegerField(
        label=_("Permits"),
        min_value=1,
        max_value=MOST_PERMITS,
        help_text=_("How many may hold it at a time, whatever the code of a process says. Nobody loses a permit."),
    )
    reason = _Reason(help_text=_("Goes to the audit log and to the history, and is shown beside the limit."))

    def __init__(self, *args: Any, clear: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["permits"].required = not clear


class EndForm(forms.Form):
    """Which hold of a person is to end before its time."""

    key = forms.CharField(max_length=LONGEST_KEY, widget=forms.HiddenInput)
    token = forms.IntegerField(min_value=0, max_value=2**63 - 1, widget=forms.HiddenInput)
    reason = _Reason(required=False)


def use_widgets(form: forms.Form, overrides: Mapping[Any, Mapping[str, Any]]) -> None:
    """Give the fields the widgets that the admin, or its theme, has for a model's fields: `formfield_overrides`."""
    for field in form.fields.values():
        widget = overrides.get(_MODEL_FIELDS.get(type(field), models.CharField), {}).get("widget")
        if widget is not None and not field.widget.is_hidden:
            attrs = field.widget.attrs
            field.widget = forms.Field(required=field.required, widget=widget).widget
            field.widget.attrs.update(attrs)


def focus_first_error(form: forms.Form) -> None:
    """Have the browser focus the first field with an error, so that screen readers read that error."""
    for name, field in form.fields.items():
        if name in form.errors and not field.widget.is_hidden:
            field.widget.attrs["autofocus"] = True
            return
