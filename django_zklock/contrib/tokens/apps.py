"""The app `django_zklock.contrib.tokens`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.apps import AppConfig

from django_zklock.contrib.tokens import signing

if TYPE_CHECKING:
    from django_zklock.locks.hold import Hold


class TokensConfig(AppConfig):
    """An app of its own: only projects that send tokens to other services, or get them, need it."""

    name = "django_zklock.contrib.tokens"
    label = "zklock_tokens"
    verbose_name = "Signed tokens"

    def sign(self, hold: Hold, until: float) -> str:
        """Return the token of `hold.signed_token()`, which finds this app in Django's registry."""
        return signing.sign(hold, until)
