"""Start the site's process and read its address."""

import json
import os
import subprocess

from support import forked
from support.zoo import PYTHONPATH, TESTS


class Site:
    def __init__(self, home, url, *, name="site", **zklock):
        """Sites of one home share its database; each has a name of its own for its log, and is started alone."""
        self.log = home / f"{name}.log"
        self.environment = {
            "DJANGO_SETTINGS_MODULE": "support.browser.settings",
            "SITE_HOME": str(home),
            "ZKLOCK_URL": url,
            "SITE_ZKLOCK": json.dumps(zklock),
        }
        self.url = ""
        self.sessions = {}  # by user name, the value of the cookie that makes somebody that user

    def __enter__(self):
        with self.log.open("w") as log:
            self.process = forked.start(
                ["-m", "support.browser.serve"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=TESTS,
                env={**os.environ, "PYTHONPATH": PYTHONPATH, **self.environment},
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self.__exit__(None, None, None)
            raise AssertionError(f"The site did not start:\n{self.log.read_text()}")
        said = json.loads(line)
        self.url, self.sessions = said["url"], said["sessions"]
        return self

    def __exit__(self, *about):
        self.process.terminate()
        self.process.wait(30)
        assert self.process.stdout is not None
        self.process.stdout.close()
