"""The shop's addresses."""

from __future__ import annotations

from django.urls import path

from shop import views

urlpatterns = [
    path("", views.shop, name="shop"),
    path("items/<slug:sku>/buy/", views.buy, name="buy"),
    path("items/<slug:sku>/abuy/", views.abuy, name="abuy"),
    path("items/<slug:sku>/order/", views.order, name="order"),
    path("items/<slug:sku>/delivery/", views.DeliveryView.as_view(), name="delivery"),
]
