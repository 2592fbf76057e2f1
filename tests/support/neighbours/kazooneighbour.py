"""kazoo without this package, in a process that tests control."""

from __future__ import annotations

import sys
from pathlib import Path

from support.neighbours.protocol import OtherClient


def kazoo(hosts: str, session_timeout: float = 4.0) -> OtherClient:
    """Return a process with one client of kazoo's, which is started as a context; paths are from the root on."""
    program = Path(__file__).with_name("kazooprocess.py")
    return OtherClient([sys.executable, "-u", str(program), hosts, str(round(session_timeout * 1000))])
