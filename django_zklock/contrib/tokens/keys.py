"""The keys of signed tokens, `ZKLOCK["TOKEN_KEYS"]`, which no error report shows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from django.core.exceptions import ImproperlyConfigured
from django.core.signing import BadSignature, Signer

from django_zklock import conf
from django_zklock.conf.table import InvalidValue, Row, is_text

_SHORTEST: Final = 32  # characters; an attacker who has a token can try any number of keys on it
ADVICE: Final = "Put the newest first. `secrets.token_urlsafe(48)` generates a good key."


class Keys:
    """
    The first key signs, all verify.

    Error reporters send the locals of all frames of an error, and of those it follows from. So the keys are in no
    attribute, and no error of a signer leaves this class.
    """

    __slots__ = ("_new_signer",)

    def __init__(self, keys: Sequence[str | bytes]) -> None:
        def new_signer(**options: Any) -> Signer:
            return Signer(key=keys[0], fallback_keys=list(keys[1:]), **options)

        self._new_signer = new_signer

    def sign(self, body: str, *, salt: str) -> str:
        """Return a text with its signature."""
        return self._new_signer(salt=salt).sign(body)

    def unsign(self, signed: str, *, salt: str) -> str | None:
        """Return the text without its signature; None if none of the keys has made that."""
        try:
            return self._new_signer(salt=salt).unsign(signed)
        except (BadSignature, ValueError):  # a ValueError for a lone surrogate
            return None


def read_keys(given: object) -> tuple[str, ...]:
    """Read a list of keys."""
    # A str is a sequence, too, but it is not a list of keys.
    keys = given if isinstance(given, (list, tuple)) else ()
    if not keys or not all(is_text(key) and len(key) >= _SHORTEST for key in keys):
        raise InvalidValue(f"is not a list of keys with {_SHORTEST} or more characters")
    return tuple(keys)


def hidden(given: object) -> Keys | str | None:
    """Return the keys in a list, or the fault of the list as the end of a sentence; None for None."""
    try:
        return given if given is None or isinstance(given, Keys) else Keys(read_keys(given))
    except InvalidValue as error:
        return str(error)


def checked(keys: Keys | str | None, where: str = "keys") -> Keys | None:
    """Return what `hidden` has returned. Raises `ImproperlyConfigured` for a fault, here, where no key is in reach."""
    if isinstance(keys, str):
        raise ImproperlyConfigured(f"{where} {keys}. {ADVICE}")
    return keys


def token_keys() -> Keys:
    """Return `TOKEN_KEYS`, else `SECRET_KEY` and its fallbacks. Raises `ImproperlyConfigured` if they are invalid."""
    own = checked(hidden(conf.entry("TOKEN_KEYS")), 'ZKLOCK["TOKEN_KEYS"]')
    return Keys((conf.setting("SECRET_KEY"), *conf.setting("SECRET_KEY_FALLBACKS"))) if own is None else own


conf.add_key("TOKEN_KEYS", Row("E011", read_keys, ADVICE))
