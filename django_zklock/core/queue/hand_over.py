"""The text by which one process hands a lock over to another. It names the operator hold that waits for the adopter."""

from __future__ import annotations

import base64
import json
import zlib
from dataclasses import astuple, dataclass
from typing import Final

from django_zklock.core.errors import InvalidHandOver
from django_zklock.core.queue.nodes import Kind, prefix
from django_zklock.core.queue.operator_hold import LONGEST, is_operator

_VERSION: Final = "zkh1."
_ALTERNATIVE: Final = b"-_"  # to + and /, so that the text may be a part of a URL


@dataclass(frozen=True, slots=True)
class HandOver:
    """One hand-over of a lock."""

    key: str
    kind: Kind
    limit: int  # of permits, in the code of the giver; 0 if it is no semaphore
    guid: str  # of the hold
    sequence: str  # the last digits of its name, which are those of the giver
    template: str  # of the key
    seconds: float  # for which the hold waits
    token: int = 0  # of the adopter, once the hold is there

    @property
    def name(self) -> str:
        """The name of the znode of the hold."""
        return f"{prefix(self.guid, self.kind)}{self.sequence}"

    def encode(self, base: str) -> str:
        """Return the text, for programs whose locks are below this path."""
        fields = json.dumps((self.key, self.kind.value, *astuple(self)[2:]), separators=(",", ":"))
        body = base64.b64encode(fields.encode(), _ALTERNATIVE).decode().rstrip("=")
        return f"{_VERSION}{zlib.crc32(f'{base} {body}'.encode()):08x}{body}"

    @classmethod
    def decode(cls, text: object, base: str) -> HandOver:
        """Return the hand-over in a text. Raises `InvalidHandOver` for any other text, and for one of another path."""
        body = text[len(_VERSION) + 8 :] if isinstance(text, str) else ""
        try:
            key, kind, *others = json.loads(base64.b64decode(body + "=" * (-len(body) % 4), _ALTERNATIVE))
            hand_over = cls(key, Kind(kind), *others)
            is_valid = (
                text == hand_over.encode(base)
                and is_operator(hand_over.name)
                and all(isinstance(value, str) for value in (key, hand_over.template))
                and (hand_over.limit > 0) is (hand_over.kind is Kind.PERMIT)
                and 0 < hand_over.seconds <= LONGEST
                and hand_over.token > 0
            )
        except (ValueError, TypeError, RecursionError) as error:
            raise InvalidHandOver from error
        if not is_valid:
            raise InvalidHandOver
        return hand_over
