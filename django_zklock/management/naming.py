"""Which lock somebody means who types a name."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from typing import Final

from django_zklock import conf
from django_zklock.exceptions import InvalidLockName
from django_zklock.queue.names import Template
from django_zklock.queue.segments import SAFE, unescape

_SAFE: Final = re.escape("".join(sorted(SAFE)))
_KEY: Final = re.compile(rf"(?:[{_SAFE}/]|%[0-9A-F]{{2}})+")


def add_name(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments that name a lock."""
    parser.add_argument("name", metavar="NAME", help="a key as `list` shows it, a name in ZKLOCK['LOCKS'], a template")
    parser.add_argument(
        "--field", dest="fields", action="append", default=[], type=_field, metavar="NAME=VALUE", help="for a template"
    )


def key_of(name: str, fields: Sequence[tuple[str, str]]) -> str:
    """
    Return the key that is meant. Raises `InvalidLockName`.

    What has an escape in it, and nothing that would have to be escaped, is a key already, copied from somewhere.
    """
    path = conf.current().options_for(name).path or name
    if path == name and not fields and "%" in name and _KEY.fullmatch(name):
        return name
    template = Template.parse(path)
    if path != name and not set(template.fields) <= dict(fields).keys():
        raise InvalidLockName(f"{name!r} is an entry of LOCKS with the path {path!r}. {_use(template)}")
    return template.render(dict(fields))


def entries_below(key: str) -> str:
    """Return which entries of `LOCKS` have paths below a key that nobody holds, in words; empty if none has."""
    config = conf.current()
    for name, options in config.locks.items():
        if options.path is not None and options.path.startswith(f"{key}/"):
            return f"LOCKS has {name!r} with the path {options.path!r}. {_use(Template.parse(options.path))}"
    return ""


def _use(template: Template) -> str:
    fields = " ".join(f"--field {name}=VALUE" for name in template.fields)
    return f"Give {fields}, or the whole key." if fields else "Give the whole key."


def template_of(name: str) -> str:
    """Return what names the same lock in code: `name`, or the template whose key it is."""
    if name not in conf.current().locks and "%" in name and _KEY.fullmatch(name):
        text = unescape(name).replace("{", "{{").replace("}", "}}")
        if Template.parse(text).render({}) == name:
            return text
    return name


def _field(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value
