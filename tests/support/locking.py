"""`manage.py zklock`, called in this process: what it writes and how it exits."""

from __future__ import annotations

import contextlib
import io
import json
from typing import Any

from django.core.management import CommandError, call_command


def zklock(*arguments: object) -> str:
    """Return what a sub-command writes; raises what it fails with."""
    out = io.StringIO()
    call_command("zklock", *map(str, arguments), stdout=out)
    return out.getvalue()


def as_json(*arguments: object) -> Any:
    """Return what it says with --json."""
    return json.loads(zklock(*arguments, "--json"))


def ending(*arguments: object) -> tuple[int, str, str]:
    """Return its exit status, what it wrote before, and the message it failed with."""
    out = io.StringIO()
    with contextlib.redirect_stderr(io.StringIO()):
        try:
            call_command("zklock", *map(str, arguments), stdout=out)
        except CommandError as error:
            return error.returncode, out.getvalue(), str(error)
        except SystemExit as error:
            return int(error.code or 0), out.getvalue(), ""
    return 0, out.getvalue(), ""
