"""Greenlets own locks as threads do, where gevent has patched the standard library; in processes of their own."""

from __future__ import annotations

import pytest
from support.zoo import Zoo

pytest.importorskip("gevent")
pytestmark = pytest.mark.zookeeper

PATCH = "from gevent import monkey; monkey.patch_all()\n"


def run(zoo: Zoo, script: str) -> str:
    """Run a script under gevent; return its output."""
    import subprocess
    import sys

    process = zoo.spawn("", GEVENT_SCRIPT=script)
    process.kill()
    process.communicate()
    prelude = "import django; django.setup()\nimport gevent, time\nfrom django_zklock import zk_lock\n"
    process = subprocess.Popen(
        [sys.executable, "-u", "-W", "error", "-c", PATCH + prelude + script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=zoo.environment(),
    )
    try:
        output, errors = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 0, errors
    assert "Traceback" not in errors, errors
    return output
