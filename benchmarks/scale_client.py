"""A normal client, with Django and the package's public API, in a process of its own; `scale.py` runs it meanwhile."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

ENOUGH = 300.0  # seconds for what should take less


def locks(seconds: str) -> dict[str, Any]:
    """Acquire and release a lock that nobody else wants, again and again; return how long each time took."""
    from django_zklock import zk_lock  # noqa: PLC0415 - not before Django is set up
    from django_zklock.exceptions import ZkLockError  # noqa: PLC0415

    took, failed = [], 0
    with zk_lock("client/warm-up"):
        pass
    end = time.monotonic() + float(seconds)
    ready()
    while time.monotonic() < end:
        began = time.monotonic()
        try:
            with zk_lock("client/uncontended", timeout=60):
                pass
        except ZkLockError:
            failed += 1
        took.append(time.monotonic() - began)
        time.sleep(0.01)
    return {"took": took, "failed": failed}


def joins(key: str, count: str) -> dict[str, Any]:
    """Join the queue of a held lock, and leave it when the wait has begun; return how long each join took."""
    from django_zklock import zk_lock  # noqa: PLC0415 - not before Django is set up
    from django_zklock.signals import lock_waiting  # noqa: PLC0415

    took = []

    async def wait() -> None:
        async with zk_lock(key, timeout=ENOUGH):
            pass

    async def join() -> None:
        loop = asyncio.get_running_loop()
        for _ in range(int(count)):
            waits: asyncio.Future[float] = loop.create_future()

            def on_waiting(waits: asyncio.Future[float] = waits, **_: Any) -> None:
                loop.call_soon_threadsafe(waits.set_result, time.monotonic())

            lock_waiting.connect(on_waiting)
            began = time.monotonic()
            acquisition = asyncio.ensure_future(wait())
            await asyncio.wait((acquisition, waits), return_when=asyncio.FIRST_COMPLETED)
            if acquisition.done():
                raise RuntimeError(f"{key} was not held") from acquisition.exception()
            took.append(waits.result() - began)
            lock_waiting.disconnect(on_waiting)
            acquisition.cancel()
            await asyncio.wait((acquisition,))

    with zk_lock("client/warm-up"):
        asyncio.run(join())
    return {"took": took}


def inspect() -> dict[str, Any]:
    """Take a snapshot with the limits of the admin, one of everything, and show the admin's list."""
    from django.core.management import call_command  # noqa: PLC0415 - not before Django is set up
    from django.test import override_settings  # noqa: PLC0415
    from support import adminsite  # noqa: PLC0415

    from django_zklock import zk_lock  # noqa: PLC0415
    from django_zklock.inspection import snapshot  # noqa: PLC0415

    with zk_lock("client/warm-up"):
        pass
    usual, usual_took = timed(lambda: snapshot(max_age=0, max_waiters=1))
    whole, whole_took = timed(lambda: snapshot(max_age=0, max_locks=None, max_waiters=0, reply_timeout=ENOUGH))
    with override_settings(**adminsite.SETTINGS):
        call_command("migrate", verbosity=0)
        browser = adminsite.user_with("view_lock", "break_lock")
        page, page_took = timed(lambda: browser.get("/admin/zklock/lock/"))
        host, host_took = timed(lambda: browser.get("/admin/zklock/lock/?host=web-1"))
    return {
        "snapshot": {"took": usual_took, "locks": len(usual.locks), "total": usual.total, "problem": usual.problem},
        "whole": {"took": whole_took, "locks": len(whole.locks), "total": whole.total, "problem": whole.problem},
        "admin": {"took": page_took, "status": page.status_code, "bytes": len(page.content)},
        "host": {"took": host_took, "status": host.status_code},
    }


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    """Return the result of a call, and the seconds that it took."""
    began = time.monotonic()
    result = call()
    return result, time.monotonic() - began


def ready() -> None:
    """Tell `scale.py` that the measurement begins."""
    sys.stdout.write("ready\n")
    sys.stdout.flush()


WORK: dict[str, Callable[..., dict[str, Any]]] = {"locks": locks, "joins": joins, "inspect": inspect}


def main() -> None:
    """Do one kind of work, and print what came of it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("work", choices=list(WORK))
    parser.add_argument("arguments", nargs="*")
    options = parser.parse_args()
    os.environ["ZKLOCK_URL"] = options.url
    os.environ["DJANGO_SETTINGS_MODULE"] = "settings"
    import django  # noqa: PLC0415 - the settings read the environment

    django.setup()
    json.dump(WORK[options.work](*options.arguments), sys.stdout)


if __name__ == "__main__":
    main()
