"""The setting `ZKLOCK`, checked and completed with defaults. No other package reads Django's settings."""

from __future__ import annotations

from django_zklock.conf.keys import Keys
from django_zklock.conf.settings import (
    DEFAULT_ROOT,
    Config,
    are_settings_known,
    current,
    for_tests,
    forget,
    path_for,
    problems,
    raw,
    setting,
    token_keys,
)

__all__ = [
    "DEFAULT_ROOT",
    "Config",
    "Keys",
    "are_settings_known",
    "current",
    "for_tests",
    "forget",
    "path_for",
    "problems",
    "raw",
    "setting",
    "token_keys",
]
