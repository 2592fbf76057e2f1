"""The shop's application."""

from __future__ import annotations

from django.apps import AppConfig


class ShopConfig(AppConfig):
    """Connect the receiver that records every abort."""

    name = "shop"

    def ready(self) -> None:
        """Import the receivers; the import connects them."""
        from shop import receipts  # noqa: F401, PLC0415
