"""Spans of time as one types them (`90`, `1.5s`, `15m`, `2h`, `1d`), and as one reads them."""

from __future__ import annotations

import argparse
import math
from typing import Final

_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_LONGEST: Final = 366 * 86400.0


def seconds(text: str) -> float:
    """Return the seconds that `text` means; for argparse, which shows what this raises."""
    number, factor = text.strip(), 1.0
    for unit in ("ms", "s", "m", "h", "d"):
        if number.endswith(unit):
            number, factor = number.removesuffix(unit), _UNITS[unit]
            break
    try:
        found = float(number) * factor
    except ValueError:
        found = math.nan
    if not 0 <= found <= _LONGEST:  # also for a NaN
        raise argparse.ArgumentTypeError(f"{text!r} is no time; seconds, or as in 90s, 15m, 2h, 1d")
    return found


def patience(text: str) -> float | None:
    """Return the seconds to wait, None for `forever`."""
    return None if text.strip().lower() == "forever" else seconds(text)


def shown(span: float) -> str:
    """Return a span in a few characters: 0.4s, 12s, 2m41s, 3h05m, 2d04h."""
    span = max(0.0, span)
    if span < 9.95:
        return f"{span:.1f}s"
    whole = round(span)
    minutes, rest = divmod(whole, 60)
    hours, minutes_left = divmod(minutes, 60)
    days, hours_left = divmod(hours, 24)
    if not minutes:
        return f"{whole}s"
    if not hours:
        return f"{minutes}m{rest:02d}s"
    return f"{days}d{hours_left:02d}h" if days else f"{hours}h{minutes_left:02d}m"
