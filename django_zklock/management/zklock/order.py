"""
Draw the order in which the tests of a project acquire locks, from a file that they have written.

Run the tests with the environment variable ZKLOCK_LOCK_ORDER=FILE. It ends with 1 if two orders can lead to a deadlock.
"""

from __future__ import annotations

import argparse

from django_zklock.core.locks import order
from django_zklock.core.locks.order import LockOrder
from django_zklock.core.queue.escaping import printable
from django_zklock.management.exit_codes import failure
from django_zklock.management.output import Output, write_line


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", help="the file that ZKLOCK_LOCK_ORDER named", metavar="FILE")
    parser.add_argument("--mermaid", action="store_true", help="write a diagram for Mermaid instead of text")


def run(out: Output, options: argparse.Namespace) -> None:
    try:
        with open(options.file, encoding="utf-8") as file:
            seen, circles = order.read(file)
    except (OSError, ValueError) as error:
        raise failure(f"The file {options.file!r} cannot be read: {error}") from error
    for line in _mermaid(seen) if options.mermaid else _text(seen):
        write_line(out, printable(line, 2000))
    if circles:
        raise failure("\n".join(map(order.advice, circles)))


def _text(seen: LockOrder) -> list[str]:
    if not seen.edges:
        return ["No lock was acquired inside another one."]
    return [f"{edge.outer} before {edge.inner}: {edge.location}" for edge in seen.edges.values()]


def _mermaid(seen: LockOrder) -> list[str]:
    names = dict.fromkeys(name for pair in seen.edges for name in pair)
    ids = {name: f"lock{number}" for number, name in enumerate(names)}
    boxes = [f'    {id}["{_escaped(name)}"]' for name, id in ids.items()]
    arrows = [_arrow(ids[edge.outer], edge.location, ids[edge.inner]) for edge in seen.edges.values()]
    return ["flowchart LR", *boxes, *arrows]


def _arrow(outer: str, text: str, inner: str) -> str:
    return f'    {outer} -->|"{_escaped(text)}"| {inner}'


def _escaped(text: str) -> str:
    """Return a text as Mermaid writes it inside quotation marks."""
    return "".join(letter if letter.isalnum() or letter in " _-./:{}" else f"#{ord(letter)};" for letter in text)
