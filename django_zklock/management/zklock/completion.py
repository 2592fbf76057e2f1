"""
Print the script that completes sub-commands, options and keys in bash and zsh.

To load it: source <(python manage.py zklock completion)
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

from django_zklock.management.output import Output

SCRIPT: Final = Path(__file__).parents[1] / "completion" / "zklock.sh"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare no options: one script serves both shells."""


def run(out: Output, options: argparse.Namespace) -> None:
    """Print the script."""
    out.write(SCRIPT.read_text())
