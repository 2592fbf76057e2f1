"""The core is a lock without Django: no settings, and no module of Django."""

import subprocess
import sys
import textwrap

from django_zklock import core


def test_the_core_grants_and_releases_a_lock_without_django(zoo):
    code = textwrap.dedent(str(core.__doc__).partition("lock::\n")[2])
    host, _, port = zoo.hosts.partition(":")
    code = code.replace('"127.0.0.1", 2181', f'"{host}", {port}').replace("/zklock/", f"{zoo.base}/")
    code += '\nimport sys\nprint(*[name for name in sys.modules if name.partition(".")[0] == "django"])\n'
    program = [sys.executable, "-W", "error", "-c", code]
    ended = subprocess.run(program, capture_output=True, text=True, timeout=60, check=True)
    token, loaded = ended.stdout.splitlines()
    assert token.startswith("token ")
    assert int(token.removeprefix("token ")) > 0
    assert loaded == ""
    zoo.assert_empty()
