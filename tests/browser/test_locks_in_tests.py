"""A test that drives a browser may take locks itself, if Django's variable allows blocking calls."""

import pytest
from django.core.exceptions import SynchronousOnlyOperation

from django_zklock import zk_lock
from django_zklock.testing import DevServer, LockTester


def test_a_browser_test_may_lock(browser, monkeypatch):
    """Playwright's loop counts as running in the thread of the test, which stays one owner while pages load."""
    lock = zk_lock("inventory/lamp", timeout=1)
    with pytest.raises(SynchronousOnlyOperation), lock:
        raise AssertionError
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "true")
    with DevServer() as server, LockTester(server) as zklock:
        hold = lock.acquire()
        with browser.new_context() as context, lock as block:
            context.new_page().set_content("<h1>Lamp</h1>")
            zklock.assert_held("inventory/lamp")
            with lock as inner:
                assert inner == block == hold
        lock.release()
        with zklock.busy_by("inventory/lamp"):
            assert lock.locked()
