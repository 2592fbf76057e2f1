"""Run `manage.py zklock`, in this process or in a new one, and return its output and exit status."""

import contextlib
import io
import json
import sys

from django.core.management import CommandError, call_command

# A shell starts what it puts in the background with Ctrl-C ignored, and children inherit that.
MANAGE = [
    sys.executable,
    "-c",
    """
import signal, sys
from django.core.management import execute_from_command_line
signal.signal(signal.SIGINT, signal.default_int_handler)
execute_from_command_line(sys.argv)
""",
    "zklock",
]


def zklock(*arguments):
    out = io.StringIO()
    call_command("zklock", *map(str, arguments), stdout=out)
    return out.getvalue()


def as_json(*arguments):
    return json.loads(zklock(*arguments, "--json"))


def ending(*arguments):
    out, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stderr(errors):
        try:
            call_command("zklock", *map(str, arguments), stdout=out)
        except CommandError as error:
            return error.returncode, out.getvalue(), str(error)
        except SystemExit as error:
            return int(error.code or 0), out.getvalue(), errors.getvalue()
    return 0, out.getvalue(), ""
