"""Permissions: without them, every page and every forged request is refused."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import urlencode

import pytest
from support.browser.actors import Actor
from support.browser.pages import LIST, Visitor, address
from support.zoo import Zoo

Visit = Callable[..., Visitor]
# The tests of the admin without a browser ask the same of each view. These prove it once more on a served site.
pytestmark = [pytest.mark.zookeeper, pytest.mark.chaos]

KEY = "orders/1042"
READING = [LIST, f"{LIST}data.json", address(KEY), address(KEY, "history")]
STEERING = {
    "break": address(KEY, "break"),
    "hold": address(KEY, "hold"),
    "end": f"{LIST}end-hold/",
    "limit": address(KEY, "limit"),
    "request-release": f"{LIST}request-release/",
}


@pytest.fixture
def held(den: Zoo, actor: Actor) -> dict[str, str]:
    """A lock that is held; what a form would have to say to break it, and to hold it."""
    token = actor.hold(KEY)
    (node,) = den.children(KEY)
    (payload,) = den.payloads(KEY)
    assert payload is not None
    return {
        "key": KEY,
        "target": f"{payload.guid}:{token}:{KEY}",
        "token": str(token),
        "reason": "forged",
        "minutes": "1",
        "wait": "0",
        "permits": "2",
        "node": node,
    }


@pytest.mark.parametrize("user", ["clerk", "stranger", None])
def test_without_permission_no_page_is_shown(held: dict[str, str], visitor: Visit, user: str | None) -> None:
    """Staff without `view_lock` get 403. Others are sent to the login page."""
    visitor_ = visitor(user)
    for path in [*READING, *STEERING.values()]:
        answer = visitor_.open(path)
        if user == "clerk":
            assert answer.status == 403, path
        else:
            assert "/admin/login/" in visitor_.page.url, path
        assert KEY not in visitor_.page.locator("body").inner_text()


def test_a_viewer_is_offered_no_action(held: dict[str, str], visitor: Visit) -> None:
    """The pages of the actions are refused, too."""
    viewer = visitor("viewer")
    for path in (LIST, address(KEY)):
        assert viewer.open(path).status == 200
        links = viewer.page.locator("#content a, #content button, #content option").all_inner_texts()
        assert not [text for text in links if "break" in text.lower()]
    for path in STEERING.values():
        assert viewer.open(path).status in {403, 405}, path


@pytest.mark.parametrize("user", ["viewer", "clerk", "stranger", None])
def test_a_forged_request_changes_nothing(held: dict[str, str], den: Zoo, visitor: Visit, user: str | None) -> None:
    """A complete form without the permission is refused."""
    forger = visitor(user)
    for path in STEERING.values():
        assert forger.post(path, **held) == (403 if user in {"viewer", "clerk"} else 302), path
    action = {"action": "break_selected", "_selected_action": KEY, "index": "0"}
    assert forger.post(LIST, **action, **held) in {200, 302, 403}  # the list again, or nothing at all
    assert den.children(KEY) == [held["node"]]


def test_a_request_from_another_site_changes_nothing(held: dict[str, str], den: Zoo, visitor: Visit) -> None:
    """Without the CSRF token, an operator's request is refused, too."""
    operator = visitor("operator")
    operator.open()
    for path in STEERING.values():
        assert operator.page.request.post(operator.site.url + path, form={**held}).status == 403
    assert den.children(KEY) == [held["node"]]


def test_only_a_post_breaks_a_lock(held: dict[str, str], den: Zoo, visitor: Visit) -> None:
    """A link cannot do it."""
    operator = visitor("operator")
    query = urlencode(held)
    for path in STEERING.values():
        assert operator.page.request.get(f"{operator.site.url}{path.partition('?')[0]}?{query}").status in {200, 405}
    assert den.children(KEY) == [held["node"]]
