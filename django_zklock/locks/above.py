"""Knows what stands on locks and is reached from a hold; looked up when asked for, as imports run downwards."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from django.apps import apps
from django.core.exceptions import ImproperlyConfigured

if TYPE_CHECKING:
    from django_zklock.contrib.fences.block import FencedBlock
    from django_zklock.fencing.model import FencedModel
    from django_zklock.locks.hold import Hold

FENCES = "django_zklock.contrib.fences"


def fenced_model(obj: FencedModel) -> FencedModel:
    """Return `obj`; raise `TypeError` if it has no token."""
    if not hasattr(obj, "fence"):
        raise TypeError(f"{type(obj).__name__} has no fencing token: derive it from django_zklock.fencing.FencedModel.")
    return obj


def fenced_block(hold: Hold, name: str, using: str) -> FencedBlock:
    """Return the block of a hold on a name; raise `ImproperlyConfigured` if there is no table for it."""
    if not apps.is_installed(FENCES):
        raise ImproperlyConfigured(f'hold.fenced() needs a table: add "{FENCES}" to INSTALLED_APPS and migrate.')
    block: FencedBlock = import_module(f"{FENCES}.block").FencedBlock(hold, name, using)
    return block


def signed_token(hold: Hold) -> str:
    """Return the token of a hold, signed for other services."""
    signed: str = import_module("django_zklock.fencing.signing").sign(hold)
    return signed
