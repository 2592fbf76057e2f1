"""
Measure what the app of events costs: acquire and release with it and without it, in one run.

There are three real ZooKeeper servers, which do not sync to disk, and a SQLite file. The two cases alternate in random
order, in short blocks; a round gives the ratio of their medians, and that of their processor time. All events of a
block are written within its processor time.

`--check` fails unless the ratios are within their budgets; `pairs.py` says how they are judged.
"""

from __future__ import annotations

import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import pairs
from support.ensemble import Ensemble

TIME, PROCESSOR_TIME = 1.06, 1.21  # with the app, to that without it; at most
SECONDS = 0.5  # of a block


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


def block(acquire_and_release: Callable[[], object], flush: Callable[[], object], slower: float) -> tuple[float, float]:
    """Return the median time of one, and the processor time on average with that of the flush, in milliseconds."""
    times: list[float] = []
    cpu, end = time.process_time(), time.perf_counter() + SECONDS
    while time.perf_counter() < end:
        times.append(pairs.slowed(acquire_and_release, slower))
    flush()
    return statistics.median(times) * 1000, (time.process_time() - cpu) * 1000 / len(times)


def main() -> int:
    """Run the benchmark."""
    options = pairs.parser(__doc__, seconds=40).parse_args()
    figures = [
        pairs.Figure("acquire + release (ms)"),
        pairs.Figure("acquire + release, processor time (ms)"),
        pairs.Figure("with the app / without it", TIME),
        pairs.Figure("with the app / without it, processor time", PROCESSOR_TIME),
    ]
    ensemble = Ensemble(nodes=3, **pairs.ENSEMBLE)
    with ensemble, tempfile.TemporaryDirectory() as directory:
        set_up(ensemble.followers[0].address, f"{directory}/events.sqlite3")
        from django_zklock import zk_lock  # noqa: PLC0415 - not before Django is set up
        from django_zklock.contrib.events import recorder  # noqa: PLC0415

        lock = zk_lock("bench/one")

        def acquire_and_release() -> None:
            lock.acquire()
            lock.release()

        block(acquire_and_release, recorder.flush, 0)  # warms up
        for _ in pairs.rounds(figures, options.seconds):
            seen = {}
            for on in random.SystemRandom().sample((False, True), 2):
                (recorder.connect if on else recorder.disconnect)()
                seen[on] = block(acquire_and_release, recorder.flush, options.slower if on else 0)
            ratios = (with_app / without for with_app, without in zip(seen[True], seen[False], strict=True))
            for figure, value in zip(figures, (*seen[False], *ratios), strict=True):
                figure.values.append(value)
    return pairs.finish(figures, check=options.check)


if __name__ == "__main__":
    sys.exit(main())
