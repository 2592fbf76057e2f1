"""Find a Chromium, and start it."""

import contextlib
import os
import shutil

from support import debian

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
PACKAGES = ("chromium", "fonts-dejavu-core")


def find_chromium():
    """Return the path of the program; the variable CHROMIUM may name it."""
    program = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, PROGRAMS)), None)
    if program is None:
        raise debian.NotInstalled("Chromium", *PACKAGES)
    return program


@contextlib.contextmanager
def started():
    """Run a browser. Meanwhile an event loop counts as running in this thread: no other test may use one."""
    from playwright.sync_api import sync_playwright

    program = find_chromium()
    # The pages are our own. As root, and within containers, Chromium's sandbox cannot be set up.
    options = ["--no-sandbox", "--disable-dev-shm-usage", "--force-prefers-no-reduced-motion"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=options)
        try:
            yield browser
        finally:
            browser.close()
