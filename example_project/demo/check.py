"""
Starts what the proof needs, runs it (`demo.proof`) and says how it ended.

`UNSAFE=1` sends the same customers to a shop without locks, to show that the check can fail. `UNSAFE=broken` sends them
to one whose locks grant everybody: there the fences alone must keep the books right.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from contextlib import ExitStack

from support.ensemble import Ensemble

from demo.services import ServiceFailed, Site, end_on_signals, say, state_directory
from demo.zookeeper import ensure_jars

TICK, SESSION = 0.5, 4.0  # seconds


def main() -> int:
    """Run the check; return 0 only if the books balance."""
    unsafe = os.environ.get("UNSAFE", "").lower() in ("1", "true", "yes", "on")
    broken = os.environ.get("UNSAFE", "").lower() == "broken"
    end_on_signals()
    began = time.monotonic()
    with ExitStack() as stack:
        home = stack.enter_context(state_directory("check"))
        shutil.rmtree(home)
        ensemble = None
        if not unsafe:
            ensure_jars()
            ensemble = stack.enter_context(Ensemble(nodes=1, tick=TICK, container_check=1.0))
            say(f"ZooKeeper serves on {ensemble.hosts}.")
        word = "1" if unsafe else "broken" if broken else "0"
        site = stack.enter_context(Site(home, variables=variables(ensemble, unsafe=word)))
        site.join()
        site.manage("migrate", "--verbosity=0")
        site.start_web()
        site.start_workers(["worker1", "worker2"])
        say(f"The shop is open, with a web server and two workers of two processes each: {site.url}")
        from demo.proof import Proof  # noqa: PLC0415 - imports the shop, which needs Django set up

        trouble = None if broken else ensemble  # what a broken lock does when its holder dies is no question
        problems = Proof(site, trouble, session=SESSION, tick=TICK).run()
    say(f"\nTook {time.monotonic() - began:.0f} s. Logs and database: {home}")
    if unsafe:
        say("UNSAFE=1, so no locks were used." + (" The books show it: this check can fail." if problems else ""))
    if broken:
        say("UNSAFE=broken, so everybody held every lock; the fences refused all that came too late.")
    say("FAILED: " + "; ".join(problems) + "." if problems else "PASSED.")
    return 1 if problems else 0


def variables(ensemble: Ensemble | None, *, unsafe: str) -> dict[str, str | None]:
    """Return the environment of a shop with its own database, broker and namespace."""
    hosts = ensemble.hosts if ensemble else "127.0.0.1:1"  # nobody asks there: no locks
    return {
        "ZKLOCK_URL": f"zk://{hosts}/shop?session_timeout={SESSION:g}",
        "UNSAFE": unsafe,
        "DEBUG": "0",
        "SHOP_THINK_TIME": "0.3",
        **dict.fromkeys(("DATABASE_URL", "CELERY_BROKER_URL", "CELERY_RESULT_BACKEND")),
    }


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("\nStopped.")
    except ServiceFailed as problem:
        sys.exit(f"\nFAILED: {problem}")
