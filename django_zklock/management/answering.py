"""Knows the options that each sub-command has which asks ZooKeeper: how long that may take, and how it is told."""

from __future__ import annotations

import argparse

from django_zklock.management.durations import seconds

PATIENCE = 5.0  # seconds; a program that was just started has to connect first


def add_answer(parser: argparse.ArgumentParser, *, json: str = "write JSON") -> None:
    """Declare how long ZooKeeper has to answer, and `--json`, of which the help says `json`."""
    parser.add_argument(
        "--patience", type=seconds, default=PATIENCE, metavar="TIME", help="for ZooKeeper (default: %(default)s s)"
    )
    parser.add_argument("--json", action="store_true", help=json)
