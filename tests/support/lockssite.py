"""A site with locks inside of views, in helpers and hooks of frameworks: this module is its URLconf."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.contrib.admin import AdminSite, ModelAdmin
from django.contrib.auth.models import Group
from django.http import Http404, HttpRequest, HttpResponse
from django.urls import path
from ninja import NinjaAPI
from rest_framework.decorators import api_view, permission_classes
from rest_framework.generics import CreateAPIView
from rest_framework.permissions import BasePermission
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.serializers import Serializer
from rest_framework.views import APIView

from django_zklock import zk_lock
from support import adminsite
from support.viewkinds import KEY, locked, losing, work

__all__ = ["KEY", "losing"]

# --- functions --------------------------------------------------------------------------------------------------


async def async_calls_helper(request: HttpRequest) -> HttpResponse:
    return HttpResponse(f"{await async_helper(request)}")


@locked()
async def async_helper(request: HttpRequest) -> int:
    work()
    return 2


def with_block(request: HttpRequest) -> HttpResponse:
    with zk_lock(KEY, timeout=0):
        work()
    return HttpResponse("done")


# --- Django REST framework and django-ninja ---------------------------------------------------------------------


class Permission(BasePermission):
    @locked()
    def has_permission(self, request: Request, view: Any) -> bool:
        work()
        return False


@api_view(["GET"])
@permission_classes([Permission])
def permitted(request: Request) -> Response:
    return Response("secret")


class Creating(CreateAPIView):
    serializer_class = Serializer

    @locked()
    def perform_create(self, serializer: Any) -> None:
        work()


class LateLock(APIView):
    """Writes a row, then takes a lock."""

    def get(self, request: Request) -> Response:
        if "missing" in request.GET:
            raise Http404
        Group.objects.create(name="half")
        with zk_lock(KEY, timeout=0, release_on="exit"):
            return Response()


api = NinjaAPI(urls_namespace="lockssite", docs_url=None)


@locked()
def ninja_auth(request: HttpRequest) -> bool:
    work()
    return True


@api.get("auth", auth=ninja_auth)
def with_auth(request: HttpRequest) -> str:
    return "secret"


# --- the admin --------------------------------------------------------------------------------------------------


class GroupAdmin(ModelAdmin):  # type: ignore[type-arg]
    @locked(release_on="commit")
    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: Any) -> None:
        work()
        super().save_model(request, obj, form, change)


def admin_of(name: str, model_admin: Any) -> AdminSite:
    site = AdminSite(name=name)
    site.register(Group, model_admin)
    return site


# ----------------------------------------------------------------------------------------------------------------

SETTINGS: dict[str, Any] = {**adminsite.SETTINGS, "ROOT_URLCONF": "support.lockssite"}

CALLBACKS: dict[str, Callable[..., Any]] = {
    "async-helper": async_calls_helper,
    "with": with_block,
    "has_permission": permitted,
}
"""Each makes the locked call when it gets a GET."""

urlpatterns = [
    *(path(f"{name}/", callback) for name, callback in CALLBACKS.items()),
    path("late-lock/", LateLock.as_view()),
    path("perform_create/", Creating.as_view()),
    path("ninja/", api.urls),
    path("admin/", admin_of("admin", GroupAdmin).urls),
]
