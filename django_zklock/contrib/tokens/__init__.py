"""
Signed fencing tokens: `hold.signed_token()` for a service that does not share the database, and how that verifies them.

Opt in by `"django_zklock.contrib.tokens"` in `INSTALLED_APPS`, on both sides.
"""

from __future__ import annotations

from django_zklock.contrib.tokens.signing import FenceVerifier
from django_zklock.contrib.tokens.stores import DatabaseTokens
from django_zklock.contrib.tokens.views import require_fence

__all__ = ["DatabaseTokens", "FenceVerifier", "require_fence"]
