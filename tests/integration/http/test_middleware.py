"""Locked views of all frameworks, and locks in views, in helpers and hooks: the middleware answers a conflict."""

import pytest
from django.contrib.auth.models import Group, User
from django.db import connection
from django.test import AsyncClient, Client, override_settings
from support import viewkinds

from django_zklock.contrib.rest_framework import exception_handler
from django_zklock.exceptions import LockBusy

pytestmark = pytest.mark.django_db

REQUESTS = {
    "save_model": (Client.post, "/admin-saving/auth/group/{pk}/change/"),
    "perform_create": (Client.post, "/perform_create/"),
    "ninja-auth": (Client.get, "/ninja/auth"),
}
KINDS = [*viewkinds.INSIDE, *REQUESTS]
DATA = {"name": "new", "post": "yes"}


@pytest.fixture(autouse=True)
def site():
    with override_settings(**viewkinds.SETTINGS):
        yield
    viewkinds.losing.clear()


@pytest.fixture
def group():
    group = Group.objects.create(name="old")
    return group


@pytest.fixture
def staff(client):
    user = User.objects.create(username="root", is_staff=True, is_superuser=True)
    client.force_login(user)
    return client


def request(client, kind, group):
    """Make the request that leads to the locked call of this kind."""
    method, address = REQUESTS.get(kind, (Client.get, f"/{kind}/"))
    return method(client, address.format(pk=group.pk), DATA if method is Client.post else None)


IN_REST = {
    "MIDDLEWARE": [name for name in viewkinds.SETTINGS["MIDDLEWARE"] if not name.endswith("LockConflictMiddleware")],
    "REST_FRAMEWORK": {"EXCEPTION_HANDLER": "django_zklock.contrib.rest_framework.exception_handler"},
}


@pytest.mark.parametrize(
    ("settings", "kind"),
    [*(({}, kind) for kind in KINDS), *((IN_REST, kind) for kind in ("perform_create", "has_permission"))],
)
def test_a_lock_in_a_view_is_answered(zoo, staff, group, settings, kind):
    with override_settings(**settings):
        with zoo.hold_elsewhere(viewkinds.KEY):
            response = request(staff, kind, group)
        assert (response.status_code, response["Retry-After"], response.json()["code"]) == (409, "1", "lock_conflict")
        assert [group.name for group in Group.objects.all()] == ["old"]
        assert request(staff, kind, group).status_code in (200, 201, 302, 403), "the call works if the lock is free"
        viewkinds.losing.append(True)
        response = request(staff, kind, group)
        assert (response.status_code, response["Retry-After"], response.json()["code"]) == (503, "5", "lock_lost")
        assert staff.get("/late-lock/?missing").status_code == 404, "other errors are left alone"


def test_a_handler_of_the_project_changes_the_answer_in_rest_framework(zoo, staff, group):
    def handler(error, context):
        response = exception_handler(error, context)
        if response is not None:
            response.data["status_code"] = response.status_code
        return response

    settings = {**IN_REST, "REST_FRAMEWORK": {"EXCEPTION_HANDLER": handler}}
    with override_settings(**settings), zoo.hold_elsewhere(viewkinds.KEY):
        response = request(staff, "perform_create", group)
    assert (response.status_code, response["Retry-After"], response["Cache-Control"]) == (409, "1", "no-store")
    assert (response.json()["code"], response.json()["status_code"]) == ("lock_conflict", 409)


def test_without_the_middleware_the_error_leaves_the_view(zoo, staff, group):
    """Nothing is answered, so no helper or permission takes a response for its result."""
    with zoo.hold_elsewhere(viewkinds.KEY), override_settings(MIDDLEWARE=IN_REST["MIDDLEWARE"]):
        for kind in KINDS:
            with pytest.raises(LockBusy):
                request(staff, kind, group)
    assert [group.name for group in Group.objects.all()] == ["old"]


async def test_the_middleware_answers_for_async_views(zoo):
    client = AsyncClient()
    with zoo.hold_elsewhere(viewkinds.KEY):
        assert (await client.get("/async-helper/")).status_code == 409
    assert (await client.get("/async-helper/")).status_code == 200


@pytest.mark.django_db(transaction=True)
def test_the_exception_handler_rolls_back_the_request(zoo, client):
    """A response is no exception, so Django would commit what the view has written before the conflict."""
    connection.settings_dict["ATOMIC_REQUESTS"] = True
    try:
        with override_settings(**IN_REST):
            with zoo.hold_elsewhere(viewkinds.KEY):
                assert client.get("/late-lock/").status_code == 409
            assert not Group.objects.filter(name="half").exists()
            assert client.get("/late-lock/").status_code == 200
        assert Group.objects.filter(name="half").exists()
    finally:
        connection.settings_dict["ATOMIC_REQUESTS"] = False


# --- all kinds of views, of Django, Django REST framework and django-ninja --------------------------------------------


def address(kind):
    return f"/{kind}" if kind.startswith("ninja") else f"/{kind}/"


@pytest.mark.parametrize("kind", viewkinds.PATHS)
def test_every_kind_of_view_answers(zoo, client, kind):
    response = client.get(address(kind))
    assert (response.status_code, response.content) == (200, b"done")
    with zoo.hold_elsewhere(viewkinds.KEY):
        response = client.get(address(kind))
    assert (response.status_code, response.json()["code"]) == (409, "lock_conflict")
    viewkinds.losing.append(True)
    response = client.get(address(kind))
    assert (response.status_code, response.json()["code"]) == (503, "lock_lost")


def test_a_lock_above_paginate_answers(zoo, client):
    assert client.get("/ninja/paged?limit=5").json() == {"items": ["done"], "count": 1}
    with zoo.hold_elsewhere(viewkinds.KEY):
        assert client.get("/ninja/paged").status_code == 409


def test_views_answer_503_without_zookeeper(zoo, client):
    with zoo.configured("127.0.0.1:1", CONNECT_TIMEOUT=0.1):
        for kind in ("function", "handler", "api_view-above", "drf/actions/buy", "ninja/sync"):
            response = client.get(address(kind))
            assert (response.status_code, response.json()["code"]) == (503, "lock_unavailable")
