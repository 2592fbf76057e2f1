"""A site with locked code that gets a request, and is no view: this module is its URLconf."""

from __future__ import annotations

import functools
from collections.abc import Callable
from copy import deepcopy
from typing import Any

from django import forms, template
from django.contrib import messages
from django.contrib.admin import AdminSite, ModelAdmin
from django.contrib.admin import action as admin_action
from django.contrib.auth import authenticate
from django.contrib.auth.decorators import user_passes_test
from django.contrib.auth.mixins import UserPassesTestMixin
from django.contrib.auth.models import Group
from django.contrib.auth.signals import user_logged_in
from django.contrib.syndication.views import Feed
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.template import engines
from django.test import RequestFactory
from django.urls import include, path
from django.utils.decorators import method_decorator
from django.views import View
from django.views.generic import FormView, ListView
from ninja import NinjaAPI
from rest_framework.authentication import BaseAuthentication
from rest_framework.decorators import action, api_view, permission_classes
from rest_framework.generics import CreateAPIView, GenericAPIView
from rest_framework.permissions import BasePermission
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.routers import SimpleRouter
from rest_framework.serializers import Serializer
from rest_framework.throttling import BaseThrottle
from rest_framework.views import APIView
from rest_framework.viewsets import ViewSet

from django_zklock import zk_lock, zk_locked
from django_zklock.exceptions import LockLost
from support import adminsite

KEY = "plain"
locked = functools.partial(zk_locked, KEY, timeout=0)

losing: list[bool] = []
"""Not empty: the work loses its lock."""


def work() -> None:
    if losing:
        raise LockLost("The lock was taken away.", lock=KEY)


# --- functions --------------------------------------------------------------------------------------------------


@locked()
def helper(request: HttpRequest, n: int = 1) -> int:
    work()
    return n * 2


def calls_helper(request: HttpRequest) -> HttpResponse:
    return HttpResponse(f"{helper(request, 2)}")


@zk_locked("around")
def locked_and_calls_helper(request: HttpRequest) -> HttpResponse:
    return calls_helper(request)


async def async_calls_helper(request: HttpRequest) -> HttpResponse:
    return HttpResponse(f"{await async_helper(request)}")


@locked()
async def async_helper(request: HttpRequest) -> int:
    work()
    return 2


@locked()
def view(request: HttpRequest) -> HttpResponse:
    work()
    return HttpResponse("view")


def calls_view(request: HttpRequest) -> HttpResponse:
    view(request)
    return HttpResponse("done")


def calls_view_without_url(request: HttpRequest) -> HttpResponse:
    view(RequestFactory().get("/view/"))
    return HttpResponse("done")


def hides(function: Callable[..., HttpResponse]) -> Callable[..., HttpResponse]:
    """Decorate a view without `functools.wraps`."""

    def wrapper(request: HttpRequest) -> HttpResponse:
        return function(request)

    return wrapper


def with_block(request: HttpRequest) -> HttpResponse:
    with zk_lock(KEY, timeout=0):
        work()
    return HttpResponse("done")


@locked()
def may_pass(user: Any) -> bool:
    work()
    return True


@locked()
def on_login(sender: object, request: HttpRequest, **kwargs: Any) -> None:
    work()


def receives(request: HttpRequest) -> HttpResponse:
    user_logged_in.connect(on_login)
    try:
        user_logged_in.send(HttpRequest, request=request, user=request.user)
        on_login(HttpRequest, request)
    finally:
        user_logged_in.disconnect(on_login)
    return HttpResponse("done")


class Backend:
    @locked()
    def authenticate(self, request: HttpRequest, **credentials: Any) -> None:
        work()


def authenticates(request: HttpRequest) -> HttpResponse:
    authenticate(request, username="x", password="y")
    return HttpResponse("done")


class CallMiddleware:
    """Locks the requests for one URL."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        return self.locked_call(request) if request.path == "/middleware/" else self.get_response(request)

    @locked()
    def locked_call(self, request: HttpRequest) -> HttpResponse:
        work()
        return self.get_response(request)

    def process_view(self, request: HttpRequest, callback: Any, args: Any, kwargs: Any) -> HttpResponse | None:
        return self.locked_process_view(request) if request.path == "/process-view/" else None

    @locked()
    def locked_process_view(self, request: HttpRequest) -> None:
        work()


def done(request: HttpRequest) -> HttpResponse:
    return HttpResponse("done")


@locked()
def context(request: HttpRequest) -> dict[str, Any]:
    work()
    return {"locked": "done"}


def context_processor(request: HttpRequest) -> dict[str, Any]:
    return context(request) if request.path == "/context-processor/" else {}


register = template.Library()


@register.simple_tag(takes_context=True)
def tag(context: dict[str, Any]) -> str:
    return f"{helper(context['request'])}"


def renders(request: HttpRequest) -> HttpResponse:
    return render(request, "admin/404.html")


def renders_tag(request: HttpRequest) -> HttpResponse:
    return HttpResponse(engines["django"].from_string("{% tag %}").render({}, request))


class SavingForm(forms.Form):
    @locked()
    def save(self, request: HttpRequest) -> None:
        work()


def saves_form(request: HttpRequest) -> HttpResponse:
    SavingForm({}).save(request)
    return HttpResponse("done")


# --- class-based views ------------------------------------------------------------------------------------------


class ValidForm(FormView):  # type: ignore[type-arg]
    form_class = SavingForm

    @locked()
    def form_valid(self, form: Any) -> HttpResponse:
        work()
        return HttpResponse("done")


class Listing(ListView):  # type: ignore[type-arg]
    template_name = "admin/404.html"

    @locked()
    def get_queryset(self) -> Any:
        work()
        return Group.objects.none()


class Tested(UserPassesTestMixin, View):
    def test_func(self) -> bool:
        return self.allowed(self.request)

    @locked()
    def allowed(self, request: HttpRequest) -> bool:
        work()
        return True

    def get(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse("done")


class Computing(View):
    def get(self, request: HttpRequest) -> HttpResponse:
        self.compute(request)
        return HttpResponse("done")

    @locked()
    def compute(self, request: HttpRequest) -> int:
        work()
        return 1


@method_decorator(locked(), name="compute")
class DecoratedComputing(Computing):
    def compute(self, request: HttpRequest) -> int:
        work()
        return 1


class News(Feed):  # type: ignore[type-arg]
    title = link = description = "news"

    @locked()
    def get_object(self, request: HttpRequest, *args: Any, **kwargs: Any) -> None:
        work()

    def items(self) -> list[Any]:
        return []


# --- Django REST framework and django-ninja ---------------------------------------------------------------------


class Permission(BasePermission):
    @locked()
    def has_permission(self, request: Request, view: Any) -> bool:
        work()
        return False


class ObjectPermission(BasePermission):
    @locked()
    def has_object_permission(self, request: Request, view: Any, obj: Any) -> bool:
        work()
        return False


@method_decorator(locked(), name="has_permission")
class DecoratedPermission(BasePermission):
    def has_permission(self, request: Request, view: Any) -> bool:
        work()
        return False


class Authentication(BaseAuthentication):
    @locked()
    def authenticate(self, request: Request) -> None:
        work()


class Throttle(BaseThrottle):
    @locked()
    def allow_request(self, request: Request, view: Any) -> bool:
        work()
        return True


@api_view(["GET"])
@permission_classes([Permission])
def permitted(request: Request) -> Response:
    return Response("secret")


class Secret(GenericAPIView):
    def get(self, request: Request) -> Response:
        self.check_object_permissions(self.request, object())
        return Response("secret")


class Initial(Secret):
    @locked()
    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        work()


class Queryset(Secret):
    @locked()
    def get_queryset(self) -> Any:
        work()

    def get(self, request: Request) -> Response:
        self.get_queryset()
        return Response()


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


class Actions(ViewSet):
    @action(detail=False)
    def buy(self, request: Request) -> Response:
        self.count(request)
        return Response()

    @action(detail=False)
    @locked()
    def count(self, request: Request) -> Response:
        work()
        return Response()


router = SimpleRouter()
router.register("actions", Actions, basename="nonviews")

api = NinjaAPI(urls_namespace="nonviews", docs_url=None)


@locked()
def ninja_auth(request: HttpRequest) -> bool:
    work()
    return True


@api.get("auth", auth=ninja_auth)
def with_auth(request: HttpRequest) -> str:
    return "secret"


@api.post("two")
@locked()
def second(request: HttpRequest) -> int:
    work()
    return 2


@api.get("two")
def first(request: HttpRequest) -> int:
    second(request)
    return 1


# --- the admin --------------------------------------------------------------------------------------------------


class GroupAdmin(ModelAdmin):  # type: ignore[type-arg]
    actions = ("rename", "rename_by_function")

    @locked(release_on="commit")
    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: Any) -> None:
        work()
        super().save_model(request, obj, form, change)

    @locked(release_on="commit")
    def delete_model(self, request: HttpRequest, obj: Any) -> None:
        work()
        super().delete_model(request, obj)

    @admin_action
    @locked()
    def rename(self, request: HttpRequest, queryset: Any) -> None:
        work()
        messages.success(request, "renamed")

    @staticmethod
    @locked()
    def rename_by_function(modeladmin: Any, request: HttpRequest, queryset: Any) -> None:
        work()
        messages.success(request, "renamed")


class QuerysetAdmin(ModelAdmin):  # type: ignore[type-arg]
    @locked()
    def get_queryset(self, request: HttpRequest) -> Any:
        work()
        return super().get_queryset(request)


class AllowingAdmin(ModelAdmin):  # type: ignore[type-arg]
    @locked()
    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        work()
        return False


def admin_of(name: str, model_admin: Any) -> AdminSite:
    site = AdminSite(name=name)
    site.register(Group, model_admin)
    return site


# ----------------------------------------------------------------------------------------------------------------

TEMPLATES = deepcopy(adminsite.SETTINGS["TEMPLATES"])
TEMPLATES[0]["OPTIONS"]["context_processors"].append("support.nonviews.context_processor")
TEMPLATES[0]["OPTIONS"]["builtins"] = ["support.nonviews"]

SETTINGS: dict[str, Any] = {
    **adminsite.SETTINGS,
    "ROOT_URLCONF": "support.nonviews",
    "MIDDLEWARE": [*adminsite.SETTINGS["MIDDLEWARE"], "support.nonviews.CallMiddleware"],
    "TEMPLATES": TEMPLATES,
    "AUTHENTICATION_BACKENDS": ["django.contrib.auth.backends.ModelBackend", "support.nonviews.Backend"],
}

CALLBACKS: dict[str, Callable[..., Any]] = {
    "helper": calls_helper,
    "helper-in-a-locked-view": locked_and_calls_helper,
    "async-helper": async_calls_helper,
    "view-of-another-url": calls_view,
    "view-without-url": calls_view_without_url,
    "hidden-view": hides(view),
    "with": with_block,
    "user_passes_test": user_passes_test(may_pass)(done),
    "signal-receiver": receives,
    "backend-authenticate": authenticates,
    "middleware": done,
    "process-view": done,
    "context-processor": renders,
    "template-tag": renders_tag,
    "form-method": saves_form,
    "get_queryset": Listing.as_view(),
    "test_func": Tested.as_view(),
    "method": Computing.as_view(),
    "method-by-method_decorator": DecoratedComputing.as_view(),
    "feed-get_object": News(),
    "has_permission": permitted,
    "has_permission-by-method_decorator": Secret.as_view(permission_classes=[DecoratedPermission]),
    "has_object_permission": Secret.as_view(permission_classes=[ObjectPermission]),
    "authenticate": Secret.as_view(authentication_classes=[Authentication]),
    "throttle": Secret.as_view(throttle_classes=[Throttle]),
    "initial": Initial.as_view(),
    "api-get_queryset": Queryset.as_view(),
}
"""Each makes the locked call when it gets a GET."""

urlpatterns = [
    *(path(f"{name}/", callback) for name, callback in CALLBACKS.items()),
    path("view/", view),
    path("late-lock/", LateLock.as_view()),
    path("form_valid/", ValidForm.as_view()),
    path("perform_create/", Creating.as_view()),
    path("drf/", include(router.urls)),
    path("ninja/", api.urls),
    path("admin/", admin_of("admin", GroupAdmin).urls),
    path("admin-queryset/", admin_of("nonviews-queryset", QuerysetAdmin).urls),
    path("admin-allowing/", admin_of("nonviews-allowing", AllowingAdmin).urls),
]
