"""The threads of the session, as the operating system sees them."""

from __future__ import annotations

import signal
import sys
import threading
from pathlib import Path

import pytest
from support.zoo import Zoo

from django_zklock import zk_lock


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_threads_of_the_package_receive_no_signals(zoo: Zoo) -> None:
    with zk_lock("threads"):
        threads = [thread for thread in threading.enumerate() if thread.name in ("zklock-loop", "zklock-connection")]
        assert len(threads) == 2
        for thread in threads:
            status = Path(f"/proc/self/task/{thread.native_id}/status").read_text()
            (blocked,) = (int(line.split()[1], 16) for line in status.splitlines() if line.startswith("SigBlk"))
            for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGURG):
                assert blocked & 1 << (number - 1)
            assert not blocked & 1 << (signal.SIGSEGV - 1)
