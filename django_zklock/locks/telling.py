"""Knows how what happens to a grant, on the protocol's thread, becomes a signal about one of its holds."""

from __future__ import annotations

from django.dispatch import Signal

from django_zklock.locks.protocol.grant import Grant


def tell(grant: Grant, signal: Signal, **kwargs: object) -> None:
    """Send a signal about the grant's present hold: that of the block, or of the body of a response."""
    from django_zklock.locks.taking import send  # noqa: PLC0415 - it is built upon this module

    hold = next(iter(grant.holds()), None)
    if hold is not None:  # else it is being let go of
        send(hold, signal, **kwargs)
