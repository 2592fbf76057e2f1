"""The signature of a hand-over, so that only a program with our keys can make its text."""

from __future__ import annotations

from typing import Final

from django_zklock.conf import Keys
from django_zklock.core.queue.hand_over import LONGEST_TEXT, VERSION, HandOver
from django_zklock.exceptions import InvalidHandOver

_SALT: Final = "django_zklock.hand_over"
_SEP: Final = "."  # it needs no escape in a URL


def signed(given: HandOver, keys: Keys, base: str) -> str:
    """Return the text that `zk_adopt` reads."""
    return keys.sign(given.encode(base), salt=_SALT, sep=_SEP)


def trusted(text: object, keys: Keys, base: str) -> HandOver:
    """Return the hand-over in a text that `signed` has returned. Raises `InvalidHandOver` for any other."""
    if not isinstance(text, str) or not text.startswith(VERSION) or len(text) > LONGEST_TEXT:
        why = "of an older release, without a signature" if str(text)[:5] == "zkh1." else "not of hold.hand_over()"
        raise InvalidHandOver(f"The text is {why}. Giver and adopter need the same release.")
    body = keys.unsign(text, salt=_SALT, sep=_SEP)
    if body is None:
        raise InvalidHandOver(
            "The text of the hand-over is damaged, or was not signed with one of our keys. Giver and adopter need the "
            "same TOKEN_KEYS, or the same SECRET_KEY."
        )
    return HandOver.decode(body, base)
