"""Locked code that gets a request and is no view: a conflict raises, so nobody takes a response for a result."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest.mock import Mock

import pytest
from django.contrib.auth.models import Group, User
from django.db import connection
from django.test import AsyncClient, Client, RequestFactory, override_settings
from support import nonviews
from support.ensemble import free_ports
from support.zoo import Zoo

from django_zklock.exceptions import LockBusy, LockLost, ZooKeeperUnavailable

pytestmark = [pytest.mark.zookeeper, pytest.mark.django_db]

KINDS = [
    *nonviews.CALLBACKS,
    "save_model",
    "delete_model",
    "admin-action",
    "admin-action-function",
    "admin-get_queryset",
    "admin-permission",
    "form_valid",
    "perform_create",
    "action-in-an-action",
    "ninja-auth",
    "ninja-other-method",
]
DATA: dict[str, Any] = {"name": "new", "post": "yes"}


@pytest.fixture(autouse=True)
def site() -> Iterator[None]:
    with override_settings(**nonviews.SETTINGS):
        yield
    nonviews.losing.clear()


@pytest.fixture
def group() -> Group:
    group: Group = Group.objects.create(name="old")
    return group


@pytest.fixture
def staff(client: Client) -> Client:
    user = User.objects.create(username="root", is_staff=True, is_superuser=True)
    client.force_login(user, backend="django.contrib.auth.backends.ModelBackend")
    return client


def request(client: Client, kind: str, group: Group) -> Any:
    """Make the request that leads to the locked call of this kind."""
    page = "/admin/auth/group/"
    match kind:
        case "save_model":
            return client.post(f"{page}{group.pk}/change/", DATA)
        case "delete_model":
            return client.post(f"{page}{group.pk}/delete/", DATA)
        case "admin-action" | "admin-action-function":
            action = {"admin-action": "rename", "admin-action-function": "rename_by_function"}[kind]
            return client.post(page, {"action": action, "_selected_action": [group.pk]})
        case "admin-get_queryset":
            return client.get("/admin-queryset/auth/group/")
        case "admin-permission":
            return client.get("/admin-allowing/auth/group/")
        case "form_valid" | "perform_create":
            return client.post(f"/{kind}/", DATA)
        case "action-in-an-action":
            return client.get("/drf/actions/buy/")
        case "ninja-auth":
            return client.get("/ninja/auth")
        case "ninja-other-method":
            return client.get("/ninja/two")
    return client.get(f"/{kind}/")


@pytest.mark.parametrize("kind", KINDS)
def test_only_a_view_answers(zoo: Zoo, staff: Client, group: Group, kind: str) -> None:
    """Everything else raises if the lock is busy or lost, even if it gets a request, and so nothing is done."""
    with zoo.hold_elsewhere(nonviews.KEY), pytest.raises(LockBusy):
        request(staff, kind, group)
    assert [each.name for each in Group.objects.all()] == ["old"]
    assert request(staff, kind, group).status_code in (200, 201, 302, 403), "the call works if the lock is free"
    nonviews.losing.append(True)
    if kind == "delete_model":
        group.save()
    with pytest.raises(LockLost):
        request(staff, kind, group)


def test_a_callback_without_end_is_no_view(zoo: Zoo, rf: RequestFactory) -> None:
    """A test may give the request a mock as its callback: a mock claims to wrap other mocks."""
    request = rf.get("/")
    request.resolver_match = Mock()
    with zoo.hold_elsewhere(nonviews.KEY), pytest.raises(LockBusy):
        nonviews.view(request)


MIDDLEWARE = [*nonviews.SETTINGS["MIDDLEWARE"], "django_zklock.middleware.LockConflictMiddleware"]


@pytest.mark.parametrize("kind", ["has_permission", "save_model", "form_valid", "perform_create", "with", "ninja-auth"])
def test_the_middleware_answers_for_plain_code(zoo: Zoo, staff: Client, group: Group, kind: str) -> None:
    """The same answers as those of a locked view, and nothing is done."""
    with override_settings(MIDDLEWARE=MIDDLEWARE):
        with zoo.hold_elsewhere(nonviews.KEY):
            response = request(staff, kind, group)
        assert (response.status_code, response["Retry-After"], response.json()["code"]) == (409, "1", "lock_conflict")
        nonviews.losing.append(True)
        response = request(staff, kind, group)
        assert (response.status_code, response["Retry-After"], response.json()["code"]) == (503, "5", "lock_lost")
    assert [each.name for each in Group.objects.all()] == ["old"]


async def test_the_middleware_answers_for_async_views(zoo: Zoo) -> None:
    """It works in both modes of Django."""
    client = AsyncClient()
    with override_settings(MIDDLEWARE=MIDDLEWARE):
        with zoo.hold_elsewhere(nonviews.KEY):
            assert (await client.get("/async-helper/")).status_code == 409
        assert (await client.get("/async-helper/")).status_code == 200


def test_the_middleware_leaves_other_errors_alone(zoo: Zoo, staff: Client) -> None:
    """A page that does not exist is still 404."""
    with override_settings(MIDDLEWARE=MIDDLEWARE):
        assert staff.get("/late-lock/?missing").status_code == 404


HANDLER = {"EXCEPTION_HANDLER": "django_zklock.contrib.rest_framework.exception_handler"}


@pytest.mark.parametrize("kind", ["perform_create", "has_permission", "initial", "late-lock"])
def test_the_exception_handler_answers_for_an_api(zoo: Zoo, client: Client, group: Group, kind: str) -> None:
    """The same answers in Django REST framework, without a middleware."""
    with override_settings(REST_FRAMEWORK=HANDLER):
        with zoo.hold_elsewhere(nonviews.KEY):
            response = request(client, kind, group)
        assert (response.status_code, response["Retry-After"], response.json()["code"]) == (409, "1", "lock_conflict")
        assert client.get("/late-lock/?missing").status_code == 404


@pytest.mark.django_db(transaction=True)
def test_the_exception_handler_rolls_back_the_request(zoo: Zoo, client: Client) -> None:
    """A response is no exception, so Django would commit what the view has written before the conflict."""
    connection.settings_dict["ATOMIC_REQUESTS"] = True
    try:
        with override_settings(REST_FRAMEWORK=HANDLER):
            with zoo.hold_elsewhere(nonviews.KEY):
                assert client.get("/late-lock/").status_code == 409
            assert not Group.objects.filter(name="half").exists()
            assert client.get("/late-lock/").status_code == 200
        assert Group.objects.filter(name="half").exists()
    finally:
        connection.settings_dict["ATOMIC_REQUESTS"] = False


def test_plain_code_raises_without_zookeeper(zoo: Zoo, staff: Client, group: Group) -> None:
    """A permission class and the admin report no success."""
    (port,) = free_ports(1)
    url = zoo.url(f"127.0.0.1:{port}").replace("connect_timeout=3", "connect_timeout=0.1")
    with override_settings(ZKLOCK={"URL": url}):
        for kind in ("has_permission", "save_model", "helper", "ninja-auth"):
            with pytest.raises(ZooKeeperUnavailable):
                request(staff, kind, group)
