"""The arguments that sub-commands share: the lock, the reason, how long ZooKeeper may take, numbers and times."""

from __future__ import annotations

import argparse
import getpass
import math
import re
import socket
from collections.abc import Callable
from typing import Any, Final, TypeVar

from django_zklock import conf
from django_zklock.core.queue.escaping import show_tails, unescape
from django_zklock.exceptions import InvalidLockName
from django_zklock.names.template import Template, check_used, is_escaped

REPLY_TIMEOUT: Final = 5.0  # seconds; a program that was just started has to connect first
_TIME: Final = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+)(ms|[smhd]|)")
_UNITS: Final = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_MAX_SECONDS: Final = 366 * 86400.0
T = TypeVar("T")


def add_name(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments that name a lock."""
    add = parser.add_argument
    add("name", metavar="NAME", help="a key as `list` shows it, an entry of LOCKS, or a path template")
    field = "the value of a field of the template"
    add("--field", dest="fields", action=_AddField, default={}, type=_field, metavar="NAME=VALUE", help=field)


def add_reason(parser: argparse.ArgumentParser) -> None:
    """Declare `--reason`."""
    parser.add_argument("--reason", type=_reason, required=True, help="for the audit log, the holder and the waiters")


def add_answer(parser: argparse.ArgumentParser) -> None:
    """Declare `--reply-timeout` and `--json`."""
    text = "how long to wait for ZooKeeper (default: %(default)s s)"
    parser.add_argument("--reply-timeout", type=seconds, default=REPLY_TIMEOUT, metavar="TIME", help=text)
    parser.add_argument("--json", action="store_true", help="write JSON")


def acting(options: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of an operation that say why, by whom, and how long ZooKeeper may take."""
    return {"reason": options.reason, "by": user(), "reply_timeout": options.reply_timeout}


def _reason(text: str) -> str:
    if not text.strip():
        raise argparse.ArgumentTypeError("write between the quotes why you do this: it is kept in the audit log")
    return text


def user() -> str:
    """Return `user@host` of this process, for the audit log."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        name = "unknown"  # a user id without a name, as in some containers
    return f"{name}@{socket.gethostname()}"


def seconds(text: str) -> float:
    """Return a span of time such as `90`, `1.5s`, `15m`, `2h` or `1d` in seconds; an argparse type."""
    match = _TIME.fullmatch(text.strip())
    span = float(match[1]) * _UNITS[match[2]] if match else math.inf
    if span > _MAX_SECONDS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time; give seconds, or a unit as in 90s, 15m, 2h, 1d")
    return span


def integer(first: int = 1, last: int = 10_000) -> Callable[[str], int]:
    """Return an argparse type for a number from `first` to `last`."""

    def parse(text: str) -> int:
        if not (text.isascii() and text.isdigit() and first <= int(text[:9]) <= last):
            raise argparse.ArgumentTypeError(f"{text!r} is not a number from {first} to {last}")
        return int(text)

    return parse


def unless(word: str, parse: Callable[[str], T]) -> Callable[[str], T | None]:
    """Return an argparse type for None, written as this word, or for what `parse` accepts."""
    return lambda text: None if text.strip().lower() == word else parse(text)


def key_of(options: argparse.Namespace) -> str:
    """
    Return the key of the lock that the arguments of `add_name` name. Raises `InvalidLockName`.

    A name with an escape such as %20, and without a character that needs one, is a key already: it comes from a list.
    """
    name: str = options.name
    fields: dict[str, object] = options.fields
    path = conf.current().options_for(name).get("path", name)
    if path == name and not fields and is_escaped(name):
        return show_tails(name)
    template = Template.parse(path)
    if path != name and not set(template.fields) <= fields.keys():
        raise InvalidLockName(f"{name!r} is an entry of LOCKS with the path {path!r}. {_usage(template)}")
    check_used(fields, name, (path,))
    return template.render(fields)


def template_of(name: str) -> str:
    """Return the name that code uses for this lock: `name`, or for an escaped key the template that renders to it."""
    if name not in conf.current().locks and is_escaped(name):
        text = unescape(name).replace("{", "{{").replace("}", "}}")
        if Template.parse(text).render({}) == show_tails(name):
            return text
    return name


def _usage(template: Template) -> str:
    fields = " ".join(f"--field {name}=VALUE" for name in template.fields)
    return f"Give {fields}, or the whole key." if fields else "Give the whole key."


class _AddField(argparse.Action):
    """Add one field to the dict of the fields."""

    def __call__(self, parser: object, namespace: argparse.Namespace, field: Any, option: str | None = None) -> None:
        fields = getattr(namespace, self.dest)
        if field[0] in fields:
            raise argparse.ArgumentError(self, f"{field[0]!r} is given twice")
        setattr(namespace, self.dest, {**fields, field[0]: field[1]})


def _field(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value
