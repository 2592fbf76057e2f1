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
    "admin-action",
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
    client.force_login(user)
    return client


def request(client: Client, kind: str, group: Group) -> Any:
    """Make the request that leads to the locked call of this kind."""
    page = "/admin/auth/group/"
    match kind:
        case "save_model":
            return client.post(f"{page}{group.pk}/change/", DATA)
        case "admin-action":
            return client.post(page, {"action": "rename", "_selected_action": [group.pk]})
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
def test_only_a_view_gets_a_response_instead_of_an_error(zoo: Zoo, staff: Client, group: Group, kind: str) -> None:
    """Everything else raises if the lock is busy or lost, even if it gets a request, and so nothing is done."""
    with zoo.hold_elsewhere(nonviews.KEY), pytest.raises(LockBusy):
        request(staff, kind, group)
    assert [group.name for group in Group.objects.all()] == ["old"]
    assert request(staff, kind, group).status_code in (200, 201, 302, 403), "the call works if the lock is free"
    nonviews.losing.append(True)
    with pytest.raises(LockLost):
        request(staff, kind, group)


def test_a_mock_as_callback_is_no_view(zoo: Zoo, rf: RequestFactory) -> None:
    """A test may give the request a mock as its callback: a mock claims to wrap other mocks."""
    request = rf.get("/")
    request.resolver_match = Mock()
    with zoo.hold_elsewhere(nonviews.KEY), pytest.raises(LockBusy):
        nonviews.view(request)


IN_MIDDLEWARE = {"MIDDLEWARE": [*nonviews.SETTINGS["MIDDLEWARE"], "django_zklock.middleware.LockConflictMiddleware"]}
IN_REST = {"REST_FRAMEWORK": {"EXCEPTION_HANDLER": "django_zklock.contrib.rest_framework.exception_handler"}}


@pytest.mark.parametrize(
    ("settings", "kind"),
    [
        *((IN_MIDDLEWARE, kind) for kind in ("has_permission", "save_model", "form_valid", "with", "ninja-auth")),
        *((IN_REST, kind) for kind in ("perform_create", "has_permission", "initial", "late-lock")),
    ],
)
def test_a_project_may_answer_for_plain_code(
    zoo: Zoo, staff: Client, group: Group, settings: dict[str, Any], kind: str
) -> None:
    """The middleware and the handler of Django REST framework answer as a locked view does, and nothing is done."""
    with override_settings(**settings):
        with zoo.hold_elsewhere(nonviews.KEY):
            response = request(staff, kind, group)
        assert (response.status_code, response["Retry-After"], response.json()["code"]) == (409, "1", "lock_conflict")
        if settings is IN_MIDDLEWARE:
            nonviews.losing.append(True)
            response = request(staff, kind, group)
            assert (response.status_code, response["Retry-After"], response.json()["code"]) == (503, "5", "lock_lost")
        assert staff.get("/late-lock/?missing").status_code == 404, "other errors are left alone"
    assert [group.name for group in Group.objects.exclude(name="half")] == ["old"]


async def test_the_middleware_answers_for_async_views(zoo: Zoo) -> None:
    """It works in both modes of Django."""
    client = AsyncClient()
    with override_settings(**IN_MIDDLEWARE):
        with zoo.hold_elsewhere(nonviews.KEY):
            assert (await client.get("/async-helper/")).status_code == 409
        assert (await client.get("/async-helper/")).status_code == 200


@pytest.mark.django_db(transaction=True)
def test_the_exception_handler_rolls_back_the_request(zoo: Zoo, client: Client) -> None:
    """A response is no exception, so Django would commit what the view has written before the conflict."""
    connection.settings_dict["ATOMIC_REQUESTS"] = True
    try:
        with override_settings(**IN_REST):
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
