"""A site with all kinds of locked views, and with locks inside of views: this module is its URLconf."""

import functools

from asgiref.sync import async_to_sync, sync_to_async
from django.contrib.admin import AdminSite, ModelAdmin
from django.contrib.auth.models import Group
from django.http import Http404, HttpResponse
from django.urls import include, path
from django.utils.decorators import method_decorator
from django.views import View
from django.views.decorators.cache import cache_page, never_cache
from django.views.decorators.csrf import csrf_exempt
from ninja import NinjaAPI
from ninja.decorators import decorate_view
from ninja.pagination import paginate
from rest_framework.decorators import action, api_view, permission_classes
from rest_framework.generics import CreateAPIView
from rest_framework.permissions import BasePermission
from rest_framework.response import Response
from rest_framework.routers import SimpleRouter
from rest_framework.serializers import Serializer
from rest_framework.views import APIView
from rest_framework.viewsets import ViewSet

from django_zklock import zk_lock, zk_locked
from django_zklock.exceptions import LockLost
from support import adminsite

SETTINGS = {**adminsite.SETTINGS, "ROOT_URLCONF": "support.viewkinds"}
KEY = "view"
locked = functools.partial(zk_locked, KEY, timeout=0)

losing = []  # if it is not empty, the work loses its lock


def work():
    if losing:
        raise LockLost("The lock was taken away.", lock=KEY)
    return HttpResponse("done")


def page(request):
    return work()


async def async_page(request):
    return work()


class Plain(View):
    def get(self, request):
        return work()


class Handlers(View):
    get = locked()(Plain.get)


class AsyncHandlers(View):
    @locked()
    async def get(self, request):
        return work()


class Dispatch(Plain):
    @locked()
    def dispatch(self, request, *args, **kwargs):
        return super().dispatch(request, *args, **kwargs)


@method_decorator(locked(), name="get")
class DecoratedHandler(Plain): ...


@method_decorator([locked(), never_cache], name="dispatch")
class DecoratedDispatch(Plain): ...


class Api(APIView):
    get = locked()(Plain.get)


class Actions(ViewSet):
    @action(detail=False)
    @locked()
    def buy(self, request):
        return work()


router = SimpleRouter()
router.register("actions", Actions, basename="actions")

api = NinjaAPI(urls_namespace="viewkinds", docs_url=None)
api.get("sync")(locked()(page))
api.get("async")(locked()(async_page))
api.get("around")(decorate_view(locked())(page))


@api.get("paged", response=list[str])
@locked()
@paginate
def paged_operation(request):
    return [work().content.decode()]


class GroupAdmin(ModelAdmin):
    @locked()
    def changelist_view(self, request, extra_context=None):
        return work()


# --- locks inside of views, in helpers and in hooks of frameworks


async def async_calls_helper(request):
    return HttpResponse(f"{await async_helper(request)}")


@locked()
async def async_helper(request):
    work()
    return 2


def with_block(request):
    with zk_lock(KEY, timeout=0):
        work()
    return HttpResponse("done")


class Permission(BasePermission):
    @locked()
    def has_permission(self, request, view):
        work()
        return False


@api_view(["GET"])
@permission_classes([Permission])
def permitted(request):
    return Response("secret")


class Creating(CreateAPIView):
    serializer_class = Serializer

    @locked()
    def perform_create(self, serializer):
        work()


class LateLock(APIView):
    def get(self, request):
        if "missing" in request.GET:
            raise Http404
        Group.objects.create(name="half")
        with zk_lock(KEY, timeout=0, release_on="exit"):
            return Response()


@locked()
def ninja_auth(request):
    work()
    return True


@api.get("auth", auth=ninja_auth)
def with_auth(request):
    return "secret"


class SavingAdmin(ModelAdmin):
    @locked(release_on="commit")
    def save_model(self, request, obj, form, change):
        work()
        super().save_model(request, obj, form, change)


class OpenSite(AdminSite):
    def has_permission(self, request):
        return True


def admin_of(name, model_admin):
    site = OpenSite(name=name)
    site.register(Group, model_admin)
    return site


CALLBACKS = {
    "function": locked()(page),
    "async-function": locked()(async_page),
    "async-function-made-sync": async_to_sync(locked()(async_page)),
    "function-made-async": sync_to_async(locked()(page)),
    "partial": functools.partial(locked()(page)),
    "decorators": csrf_exempt(never_cache(cache_page(0)(locked()(csrf_exempt(page))))),
    "handler": Handlers.as_view(),
    "async-handler": AsyncHandlers.as_view(),
    "around-a-class": locked()(Plain.as_view()),
    "dispatch": Dispatch.as_view(),
    "method_decorator-get": DecoratedHandler.as_view(),
    "method_decorator-dispatch": DecoratedDispatch.as_view(),
    "api_view-above": api_view(["GET"])(locked()(page)),
    "api_view-below": locked()(api_view(["GET"])(page)),
    "api-class": Api.as_view(),
}

INSIDE = {
    "async-helper": async_calls_helper,
    "with": with_block,
    "has_permission": permitted,
}
"""Each makes the locked call when it gets a GET."""
saving = AdminSite(name="admin")
saving.register(Group, SavingAdmin)

urlpatterns = [
    *(path(f"{name}/", callback) for name, callback in {**CALLBACKS, **INSIDE}.items()),
    path("late-lock/", LateLock.as_view()),
    path("perform_create/", Creating.as_view()),
    path("admin-saving/", saving.urls),
    path("drf/", include(router.urls)),
    path("ninja/", api.urls),
    path("admin/", admin_of("kinds", GroupAdmin).urls),
]

NESTED = ["drf/actions/buy", *(f"ninja/{kind}" for kind in ("sync", "async", "around"))]
PATHS = [*CALLBACKS, *NESTED, "admin/auth/group"]
"""A path of this site for each kind of view, without the last slash."""
