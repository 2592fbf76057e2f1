"""All kinds of views, of Django, Django REST framework and django-ninja, answer a conflict."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.test import Client, override_settings
from support import viewkinds
from support.ensemble import free_ports
from support.zoo import Zoo

pytestmark = [pytest.mark.zookeeper, pytest.mark.django_db]


@pytest.fixture(autouse=True)
def site() -> Iterator[None]:
    with override_settings(**viewkinds.SETTINGS):
        yield
    viewkinds.losing.clear()


def address(kind: str) -> str:
    return f"/{kind}" if kind.startswith("ninja") else f"/{kind}/"


@pytest.mark.parametrize("kind", viewkinds.PATHS)
def test_every_kind_of_view_answers(zoo: Zoo, client: Client, kind: str) -> None:
    response = client.get(address(kind))
    assert (response.status_code, response.content) == (200, b"done")
    with zoo.hold_elsewhere(viewkinds.KEY):
        response = client.get(address(kind))
    assert (response.status_code, response.json()["code"]) == (409, "lock_conflict")
    viewkinds.losing.append(True)
    response = client.get(address(kind))
    assert (response.status_code, response.json()["code"]) == (503, "lock_lost")


def test_a_lock_above_paginate_answers(zoo: Zoo, client: Client) -> None:
    """The decorator below may take arguments that the function does not have."""
    assert client.get("/ninja/paged?limit=5").json() == {"items": ["done"], "count": 1}
    with zoo.hold_elsewhere(viewkinds.KEY):
        assert client.get("/ninja/paged").status_code == 409


def test_views_answer_503_without_zookeeper(zoo: Zoo, client: Client) -> None:
    (port,) = free_ports(1)
    url = zoo.url(f"127.0.0.1:{port}").replace("connect_timeout=3", "connect_timeout=0.1")
    with override_settings(ZKLOCK={"URL": url}):
        for kind in ("function", "handler", "api_view-above", "drf/actions/buy", "ninja/sync"):
            response = client.get(address(kind))
            assert (response.status_code, response.json()["code"]) == (503, "lock_unavailable")
