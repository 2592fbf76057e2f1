"""
Measure what the app of events costs: acquire and release with it and without it, in one run.

There are three real ZooKeeper servers, which sync every write to disk, and a SQLite file. The two cases alternate in
random order, in blocks. So the load of the machine affects both alike. The thread of the writer works during the blocks
that it is for, as these last longer than its pause.

`--check` fails if the app costs more than 5 %.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from support.ensemble import Ensemble

BUDGET = 1.05
SECONDS = 3.0  # of a block


def set_up(address: str, database: str) -> None:
    """Set up Django with the app, and make its table."""
    import django  # noqa: PLC0415
    from django.conf import settings  # noqa: PLC0415, TID251 - a program of its own, not a part of the package
    from django.core.management import call_command  # noqa: PLC0415

    settings.configure(
        INSTALLED_APPS=["django_zklock", "django_zklock.contrib.events"],
        ZKLOCK={"URL": f"zk://{address}/bench"},
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": database}},
        USE_TZ=True,
    )
    django.setup()
    call_command("migrate", verbosity=0)


def block(acquire_and_release: Callable[[], object]) -> tuple[list[float], float]:
    """Return the seconds that each took, and the processor time of one on average."""
    times: list[float] = []
    cpu, end = time.process_time(), time.perf_counter() + SECONDS
    while time.perf_counter() < end:
        started = time.perf_counter()
        acquire_and_release()
        times.append(time.perf_counter() - started)
    return times, (time.process_time() - cpu) / len(times)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10, help="blocks of each case (default: 10)")
    parser.add_argument("--check", action="store_true", help="fail if it is over its budget")
    options = parser.parse_args(arguments)
    ensemble = Ensemble(nodes=3, tick=2.0, container_check=60.0, max_session_timeout=60)
    with ensemble, tempfile.TemporaryDirectory() as directory:
        set_up(ensemble.followers[0].address, f"{directory}/events.sqlite3")
        from django_zklock import zk_lock  # noqa: PLC0415 - not before Django is set up
        from django_zklock.contrib.events import recorder  # noqa: PLC0415
        from django_zklock.contrib.events.models import Attempt  # noqa: PLC0415

        lock = zk_lock("bench/one")

        def acquire_and_release() -> None:
            lock.acquire()
            lock.release()

        times: dict[bool, list[float]] = {False: [], True: []}
        cpu: dict[bool, list[float]] = {False: [], True: []}
        shuffled = random.SystemRandom()
        for turn in range(options.rounds + 1):
            for on in shuffled.sample((False, True), 2):
                (recorder.connect if on else recorder.disconnect)()
                found, used = block(acquire_and_release)
                recorder.flush()
                if turn:  # the first one warms up
                    times[on] += found
                    cpu[on].append(used)
        rows = Attempt._default_manager.count()
    medians = {on: statistics.median(values) * 1000 for on, values in times.items()}
    ratio = medians[True] / medians[False]
    sys.stdout.write(
        f"acquire + release, median: {medians[False]:.3f} ms without, {medians[True]:.3f} ms with the app: "
        f"{100 * (ratio - 1):+.1f} % ({len(times[False])} and {len(times[True])} samples)\n"
        f"processor time of one:     {1000 * statistics.median(cpu[False]):.3f} ms without, "
        f"{1000 * statistics.median(cpu[True]):.3f} ms with the app; {rows} rows written\n"
    )
    return 1 if options.check and ratio > BUDGET else 0


if __name__ == "__main__":
    sys.exit(main())
