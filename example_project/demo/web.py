"""Serve the shop with a thread for each connection. SIGTERM ends it in order, so its locks are released at once."""

from __future__ import annotations

import signal
import sys

from django.core.management import execute_from_command_line


def end(_number: int, _frame: object) -> None:
    """Exit through the exit handlers. The default handler of SIGTERM would skip them."""
    sys.exit(0)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, end)
    execute_from_command_line(["manage.py", "runserver", "--noreload", "--insecure", sys.argv[1]])
