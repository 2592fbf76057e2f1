"""The setting `ZKLOCK`, checked and completed with defaults. No other package reads Django's settings."""

from __future__ import annotations

from django_zklock.conf.settings import (
    DEFAULT_ROOT,
    Config,
    add_key,
    are_settings_known,
    current,
    entry,
    for_tests,
    forget,
    path_for,
    problems,
    raw,
    setting,
)

__all__ = [
    "DEFAULT_ROOT",
    "Config",
    "add_key",
    "are_settings_known",
    "current",
    "entry",
    "for_tests",
    "forget",
    "path_for",
    "problems",
    "raw",
    "setting",
]
