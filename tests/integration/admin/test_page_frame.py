"""The pages have the frame of the installed admin: of any version of Django, and of any theme."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client, override_settings
from support import adminsite
from support.zoo import Zoo

from django_zklock import zk_lock

pytestmark = [pytest.mark.zookeeper, pytest.mark.django_db]

LIST = "/admin/zklock/lock/"
PAGES = [f"{LIST}a/change/", f"{LIST}break/?key=a", f"{LIST}hold/?key=a", f"{LIST}limit/?key=a"]
THEME = """{% extends "admin/base_site.html" %}
{% block breadcrumbs %}<b>trail of the theme</b>{% endblock %}
{% block content %}<form class="themed">
{% block field_sets %}
{% for fieldset in adminform %}{% include "admin/includes/fieldset.html" %}{% endfor %}
{% endblock %}
{% block submit_buttons_bottom %}{% endblock %}
</form>{% endblock %}
"""


@pytest.fixture
def client(zoo: Zoo) -> Iterator[Client]:
    """The client of a superuser, while the lock "a" is held."""
    client = Client()
    client.force_login(User.objects.create_superuser("root"))
    with zk_lock("a"):
        yield client


def breadcrumbs(page: str) -> list[str]:
    """Return the tags of the breadcrumbs, without what they say."""
    _, _, rest = page.partition('<nav aria-label="Breadcrumbs">')
    tags = re.findall(r'<(/?\w+)(?:[^>]*?(class="[^"]*"|aria-current="[^"]*"))?[^>]*>', rest.partition("</nav>")[0])
    assert tags
    return [" ".join(tag).strip() for tag in tags if "bdi" not in tag[0]]


def test_breadcrumbs_and_tools_are_as_in_a_change_form(client: Client) -> None:
    user = User.objects.get()
    stock = client.get(f"/admin/auth/user/{user.pk}/change/").content.decode()
    for path in PAGES:
        assert breadcrumbs(client.get(path).content.decode()) == breadcrumbs(stock), path
    page = client.get(PAGES[0]).content.decode()
    above = [text.index('class="object-tools"') < text.index('id="content-main"') for text in (page, stock)]
    assert above[0] == above[1]


@pytest.mark.parametrize("path", PAGES)
def test_pages_fill_the_change_form_of_a_theme(client: Client, path: str) -> None:
    """A page has the breadcrumbs and the form of the theme's `admin/change_form.html`."""
    (engine,) = adminsite.SETTINGS["TEMPLATES"]
    loaders = [
        ("django.template.loaders.locmem.Loader", {"admin/change_form.html": THEME}),
        "django.template.loaders.app_directories.Loader",
    ]
    themed: dict[str, Any] = {**engine, "APP_DIRS": False, "OPTIONS": {**engine["OPTIONS"], "loaders": loaders}}
    with override_settings(TEMPLATES=[themed]):
        page = client.get(path).content.decode()
    assert "trail of the theme" in page
    form = page.partition('<form class="themed">')[2].partition("</form>")[0]
    for text in ["In ZooKeeper"] if "change" in path else ['name="reason"', 'type="submit"']:
        assert text in form


def test_a_key_is_not_capitalised_in_breadcrumbs(client: Client) -> None:
    """Themes capitalize breadcrumbs, and a capitalized key is another key."""
    from django.template.defaultfilters import capfirst

    for path, crumb in ((f"{LIST}a/change/", "<bdi>a</bdi>"), (f"{LIST}a/history/", "<bdi>History of a</bdi>")):
        response = client.get(path)
        assert capfirst(response.context["original"]) == crumb
        assert crumb in response.content.decode()
