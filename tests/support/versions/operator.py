"""An operator at a terminal: reads a command of `manage.py` as a line of JSON, and answers with one."""

import io
import json
import sys

import django
from django.core.management import CommandError, call_command

from support.versions.record import ready


def run(words):
    printed = io.StringIO()
    try:
        call_command(*words, stdout=printed, stderr=printed)
    except SystemExit as exit:
        return int(exit.code or 0), printed.getvalue()
    except CommandError as error:
        return error.returncode, f"{printed.getvalue()}{error}"
    return 0, printed.getvalue()


def main():
    django.setup()
    ready()
    for line in sys.stdin:
        status, text = run(json.loads(line))
        print(json.dumps({"status": status, "text": text}), flush=True)


if __name__ == "__main__":
    main()
