"""The pages refresh themselves without disturbing their reader."""

import pytest
from support.browser.actors import Part
from support.browser.pages import ALL, LIST, address
from support.browser.scene import busy_shop

KEY = "orders/1042"
HOLDER = ".zklock-queue tbody tr:first-child"
INTERVAL = 2  # seconds between two refreshes: the shortest


def refreshing(visitor, user="viewer", path=ALL):
    viewer = visitor(user)
    viewer.install_clock()
    viewer.open(path)
    viewer.refresh_every(INTERVAL)
    return viewer


def test_rows_follow_the_locks(stage, visitor):
    first = stage.join_queue(KEY, Part.task("shop.tasks.charge", "worker-3", 812))
    stage.join_queue(KEY, Part.task("shop.tasks.refund", "worker-4", 813))
    viewer = refreshing(visitor)
    viewer.page.evaluate("window.same = true")
    stage.quit_queue(first)
    viewer.await_refresh(INTERVAL)
    viewer.row(KEY).filter(has_text="worker-4").wait_for()
    stage.join_queue("stock/lamp", Part("web-1"))
    viewer.await_refresh(INTERVAL)
    viewer.row("stock/lamp").wait_for()
    assert viewer.page.evaluate("window.same") is True


def test_a_refresh_keeps_focus_and_scroll_position(stage, visitor):
    """Rows stay where they are on the screen, also if others come above, an age gets a line less, or a note comes."""
    for number in range(40):
        stage.join_queue(f"orders/{number:03d}", Part("web-1", number, waited=1))
    viewer = refreshing(visitor)
    viewer.row("orders/020").get_by_role("link", name="orders/020").focus()
    viewer.page.evaluate("window.scrollTo({top: 300, behavior: 'instant'})")  # a wheel would still turn
    row = viewer.row("orders/015")
    where = pytest.approx(row.bounding_box()["y"], abs=5)
    stage.join_queue("orders/020", Part("web-2"))
    for host in ("web-3", "web-4"):
        stage.join_queue("stock/lamp", Part(host))  # contended, so it comes first
    viewer.await_refresh(INTERVAL)
    viewer.row("orders/020").filter(has_text="Contended").wait_for()
    assert viewer.page.evaluate("document.activeElement.textContent") == "orders/020"
    assert row.bounding_box()["y"] == where
    viewer.refresh_every(0)
    viewer.row("orders/000").locator("time").evaluate("age => { age.innerHTML = 'two<br>lines'; }")
    where = pytest.approx(row.bounding_box()["y"], abs=5)
    viewer.put_forward(INTERVAL)
    viewer.row("orders/000").filter(has_not_text="two").wait_for()
    viewer.page.context.clear_cookies(name="sessionid")
    viewer.refresh_every(INTERVAL)
    viewer.page.get_by_text("The page could not be refreshed.").wait_for()
    assert row.bounding_box()["y"] == where
    viewer.page.evaluate("y => new Promise(go => { onscroll = go; scrollTo({top: y, behavior: 'smooth'}); })", 600)
    viewer.put_forward(1)  # ages go on while the page still turns
    viewer.wait_until(lambda: viewer.page.evaluate("scrollY") == 600)


def test_ticked_rows_stay_and_stop_the_refresh(stage, visitor):
    for number in range(3):
        stage.join_queue(f"orders/{number}", Part("web-1", number))
    operator = refreshing(visitor, "operator")
    box = operator.row("orders/1").get_by_role("checkbox")
    box.check()
    asked = operator.count_requests()
    stage.join_queue("orders/0", Part("web-2"))
    operator.put_forward(INTERVAL + 1)
    assert box.is_checked()
    assert "Contended" not in operator.row("orders/0").inner_text()
    assert asked() == 0
    box.uncheck()
    operator.await_refresh(INTERVAL)
    operator.row("orders/0").filter(has_text="Contended").wait_for()


@pytest.mark.chaos
@pytest.mark.parametrize(
    ("stop", "go_on"),
    [
        (lambda viewer: viewer.refresh_every(0), lambda viewer: viewer.refresh_every(INTERVAL)),
        (lambda viewer: viewer.hide(True), lambda viewer: viewer.hide(False)),
    ],
    ids=["never", "hidden"],
)
def test_a_page_sends_no_requests_until_it_refreshes_again(stage, visitor, stop, go_on):
    """The interval is "never", or the page is hidden; then it refreshes at once."""
    stage.join_queue(KEY, Part("web-1"))
    viewer = refreshing(visitor)
    stop(viewer)
    asked = viewer.count_requests()
    stage.join_queue(KEY, Part("web-2"))
    viewer.put_forward(INTERVAL + 1)
    assert asked() == 0
    go_on(viewer)
    viewer.row(KEY).filter(has_text="Contended").wait_for()


@pytest.mark.chaos
def test_the_interval_is_remembered(stage, visitor):
    stage.join_queue(KEY, Part("web-1"))
    viewer = visitor("viewer")
    viewer.open()
    viewer.refresh_every(15)
    viewer.open()
    assert viewer.interval() == "15"


@pytest.mark.chaos
def test_a_refresh_keeps_search_filter_and_page(stage, visitor):
    stage.join_queue(KEY, Part("web-1"))
    viewer = refreshing(visitor, path=f"{LIST}?q=orders")
    stage.join_queue("invoice/1", Part("web-1"))
    stage.join_queue("orders/2", Part("web-1"))
    viewer.await_refresh(INTERVAL)
    viewer.row("orders/2").wait_for()
    assert sorted(viewer.shown_keys()) == [KEY, "orders/2"]


@pytest.mark.chaos
def test_ages_grow_between_two_refreshes(stage, visitor):
    stage.join_queue(KEY, Part("web-1"))
    viewer = refreshing(visitor)
    viewer.refresh_every(0)
    age = viewer.row(KEY).locator("time")
    before = age.inner_text()
    asked = viewer.count_requests()
    viewer.put_forward(INTERVAL)
    viewer.wait_until(lambda: age.inner_text() != before)
    assert asked() == 0


@pytest.mark.chaos
def test_a_page_that_is_not_refreshed_says_so_and_why_and_since_when(stage, visitor):
    """Else a green page would stay green for ever: the login has ended, or the site hangs."""
    viewer = refreshing(visitor, path=LIST)
    old = viewer.page.locator("#zklock-old")
    assert not old.is_visible()
    viewer.page.context.clear_cookies(name="sessionid")
    viewer.put_forward(INTERVAL)
    viewer.page.get_by_text("The page could not be refreshed.").wait_for()
    assert not old.is_visible(), "one refresh may be missed"
    viewer.put_forward(INTERVAL)
    old.get_by_text("You are not logged in any more.").wait_for()
    assert viewer.page.title().startswith("Old: ")
    viewer.put_forward(60)
    assert "1 min" in old.locator("time").inner_text()
    assert "1 min" in viewer.page.locator("#zklock-connection time").inner_text()
    assert "grayscale" in viewer.page.locator(".zklock-strip").evaluate("strip => getComputedStyle(strip).filter")
    old.get_by_role("link", name="Load it again").click()
    viewer.page.wait_for_url("**/login/**")


def stop_by_choice(viewer):
    viewer.refresh_every(0)


def stop_by_typing(viewer):
    viewer.page.locator("#content").evaluate("content => content.insertAdjacentHTML('beforeend', '<input type=text>')")
    viewer.page.locator("#content input[type=text]").last.fill("a reason")


def stop_by_choosing(viewer):
    viewer.page.locator("#content").evaluate("content => content.insertAdjacentHTML('beforeend', '<select></select>')")
    viewer.page.locator("#content select").last.focus()


@pytest.mark.parametrize("stop", [stop_by_choice, stop_by_typing, stop_by_choosing])
def test_a_page_that_nobody_refreshes_fades_after_two_minutes(stage, visitor, stop):
    viewer = refreshing(visitor, path=LIST)
    old, strip = viewer.page.locator("#zklock-old"), viewer.page.locator(".zklock-strip")
    green = strip.evaluate("strip => getComputedStyle(strip).backgroundColor")
    stop(viewer)
    viewer.put_forward(100)
    assert not old.is_visible()
    viewer.put_forward(30)
    assert "This page is old." in old.inner_text()
    assert "2 min" in old.locator("time").inner_text()
    assert strip.evaluate("strip => getComputedStyle(strip).backgroundColor") != green
    if stop is stop_by_choice:
        viewer.refresh_every(INTERVAL)
        viewer.wait_until(lambda: not old.is_visible())
        assert strip.evaluate("strip => getComputedStyle(strip).backgroundColor") == green


def test_the_page_of_a_lock_follows_the_lock(stage, visitor):
    first = stage.join_queue(KEY, Part.task("shop.tasks.charge", "worker-3", 812))
    second = stage.join_queue(KEY, Part.task("shop.tasks.refund", "worker-4", 813))
    stage.join_queue(KEY, Part("web-1", 77))
    operator = refreshing(visitor, "operator", address(KEY))
    operator.page.evaluate("window.same = true")
    stage.quit_queue(first)
    operator.await_refresh(INTERVAL)
    holder = operator.page.locator(HOLDER)
    holder.filter(has_text="worker-4").wait_for()
    assert "web-1" in operator.page.locator(".zklock-queue tbody").first.inner_text()
    operator.ask("please")
    assert f"Asked to release: {KEY}." in operator.messages()
    assert "Release requested" in holder.inner_text()
    operator.refresh_every(INTERVAL)
    stage.quit_queue(second)
    operator.await_refresh(INTERVAL)
    operator.page.locator(HOLDER).filter(has_text="web-1").wait_for()


@pytest.mark.chaos
def test_a_page_does_not_refresh_while_a_search_is_typed(stage, visitor):
    first = stage.join_queue(KEY, Part("worker-3", 812))
    stage.join_queue(KEY, Part("worker-4", 813))
    viewer = refreshing(visitor)
    search = viewer.page.locator("#searchbar")
    search.fill("orders")
    stage.quit_queue(first)
    viewer.put_forward(INTERVAL + 1)
    viewer.page.get_by_text("Not refreshed while you type.").wait_for()
    assert search.input_value() == "orders"
    search.fill("")
    viewer.await_refresh(INTERVAL)
    viewer.row(KEY).filter(has_text="worker-4").wait_for()


@pytest.mark.chaos
def test_ages_stop_and_rows_are_grey_during_an_outage(stage, wire, visitor):
    busy_shop(stage)
    viewer = refreshing(visitor)
    alert, ages = viewer.page.get_by_role("alert"), viewer.page.locator("#result_list time.zklock-age")

    def is_away():
        with viewer.page.expect_event("requestfinished"):  # else time runs out for it
            viewer.put_forward(INTERVAL)
        return alert.count() == 1

    wire.refuse = True
    wire.cut_all()
    viewer.wait_until(is_away, 20)
    shown = ages.all_inner_texts()
    viewer.put_forward(30)
    assert shown
    assert ages.all_inner_texts() == shown
    assert viewer.page.locator("#result_list").evaluate("table => getComputedStyle(table).filter") == "grayscale(1)"
    wire.heal()
    viewer.wait_until(lambda: not is_away(), 20)
    viewer.put_forward(30)
    assert ages.all_inner_texts() != shown
