"""The setting `ZKLOCK`, checked and completed with defaults. No other package reads Django's settings."""

from __future__ import annotations

from django_zklock.conf.settings import (
    DEFAULT_ROOT,
    Config,
    Tls,
    are_settings_known,
    current,
    debug,
    forget,
    has_urlconf,
    middleware,
    path_for,
    problems,
    raw,
    token_keys,
)

__all__ = [
    "DEFAULT_ROOT",
    "Config",
    "Tls",
    "are_settings_known",
    "current",
    "debug",
    "forget",
    "has_urlconf",
    "middleware",
    "path_for",
    "problems",
    "raw",
    "token_keys",
]
