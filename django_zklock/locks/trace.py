"""
The trace that work is part of, as items for its description in the queue of a lock.

"trace" is an id of 32 hexadecimal digits. "span" is an id of 16 of them, and the flags after a dash.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_TRACEPARENT = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16}-[0-9a-f]{2})")


def of_header(value: object) -> dict[str, str]:
    """Return the items of a header "traceparent", as the W3C defines it; nothing for any other text."""
    match = _TRACEPARENT.fullmatch(value) if isinstance(value, str) else None
    return {} if match is None else {"trace": match[1], "span": match[2]}


def header_of(about: Mapping[str, str]) -> str:
    """Return the header "traceparent" of these items. Without them, the header is invalid."""
    return f"00-{about.get('trace', '')}-{about.get('span', '')}"
