"""The text by which one process hands a lock over to another. It names the operator hold that waits for the adopter."""

from __future__ import annotations

import base64
import json
from dataclasses import astuple, dataclass
from typing import Final

from django_zklock.core.errors import InvalidHandOver
from django_zklock.core.queue.escaping import SEQUENCE_DIGITS
from django_zklock.core.queue.markers import MOST_PERMITS
from django_zklock.core.queue.nodes import Kind, prefix
from django_zklock.core.queue.operator_hold import LONGEST, is_operator
from django_zklock.core.queue.untrusted import integer, line, number, text, unpadded

VERSION: Final = "zkh2."
"""The beginning of a text. An older release wrote "zkh1.", without a signature."""
_LONGEST: Final = 1000  # characters of a key and its template; no key is longer
LONGEST_TEXT: Final = 16384
"""Characters of a text."""


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
        """Return the text, without a signature, for programs whose locks are below this path."""
        fields = json.dumps((base, self.key, self.kind.value, *astuple(self)[2:]), separators=(",", ":"))
        return VERSION + base64.urlsafe_b64encode(fields.encode()).decode().rstrip("=")

    @classmethod
    def decode(cls, given: object, base: str) -> HandOver:
        """Return the hand-over in a text without its signature. Raises `InvalidHandOver` for any other text."""
        try:
            fields = json.loads(unpadded(text(given, LONGEST_TEXT).removeprefix(VERSION)))
            of_base, key, kind, limit, guid, sequence, template, seconds, token = fields
            hand_over = cls(
                key=line(key, _LONGEST, least=1),
                kind=Kind(kind),
                limit=integer(limit, 0, MOST_PERMITS),
                guid=text(guid, _LONGEST),
                sequence=text(sequence, SEQUENCE_DIGITS),
                template=line(template, _LONGEST),
                seconds=number(seconds, 0, LONGEST),
                token=integer(token, 1),
            )
        except (ValueError, TypeError, RecursionError) as error:
            raise InvalidHandOver("The text of the hand-over is damaged, or a field has another type.") from error
        if of_base != base:
            raise InvalidHandOver("The text of the hand-over is of a program with another URL or ROOT.")
        is_permit = hand_over.kind is Kind.PERMIT
        if not is_operator(hand_over.name) or (hand_over.limit > 0) is not is_permit or not hand_over.seconds:
            raise InvalidHandOver("The fields in the text of the hand-over contradict each other.")
        return hand_over
