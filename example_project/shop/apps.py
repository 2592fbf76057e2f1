"""The shop's application."""

from __future__ import annotations

from django.apps import AppConfig


class ShopConfig(AppConfig):
    """Connects the receiver that keeps a receipt of every abort."""

    name = "shop"

    def ready(self) -> None:
        """Import the receivers, which connect themselves."""
        from shop import receipts  # noqa: F401, PLC0415
