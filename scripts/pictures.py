"""
Make the pictures of the admin in `docs/images`: `python scripts/pictures.py FOLDER`.

It takes five minutes, as a lock on the pictures has been held for so long. Afterwards, give each file a palette of 256
colours, which makes it a third as large.
"""

from __future__ import annotations

import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT)]

from support.browser import chromium  # noqa: E402
from support.browser.actors import Part, Stage, staged  # noqa: E402
from support.browser.pages import LIST, visit  # noqa: E402
from support.browser.site import Site  # noqa: E402
from support.ensemble import Ensemble  # noqa: E402
from support.zoo import Zoo  # noqa: E402

from django_zklock.core.queue.nodes import Kind  # noqa: E402

OF_A_NIGHT = (150, 75, 35)
"""Seconds between what comes into the queues, the last one before the pictures."""


def _hold(stage: Stage, key: str, part: Part, kind: Kind = Kind.LOCK) -> None:
    """Let it have a free lock, and say since when."""
    stage.join_queue(key, replace(part, waited=1), kind)


def _import(stage: Stage) -> None:
    work = Part.task("shop.tasks.import_prices", "worker-1", 455)
    _hold(stage, "prices/shoes", replace(work, template="prices/{feed}"))
    for number in range(3):
        view = Part.view("POST /prices/<slug:feed>/", "shop.views.edit_prices", f"web-{1 + number % 2}", 77 + number)
        stage.join_queue("prices/shoes", view)


def _deadlock(stage: Stage) -> None:
    there = Part.task("shop.tasks.move_stock", "worker-3", 812)
    back = Part.task("shop.tasks.move_stock", "worker-4", 911)
    _hold(stage, "stock/berlin", there)
    _hold(stage, "stock/paris", back)
    stage.join_queue("stock/paris", there)
    stage.join_queue("stock/berlin", back)


def _others(stage: Stage) -> None:
    refund = Part.view("POST /orders/<int:pk>/refund/", "shop.views.refund", "web-2", 78)
    invoice = Part.view("GET /invoices/<slug:month>/", "shop.views.invoice", "web-1", 77)
    _hold(stage, "orders/1042", Part.task("shop.tasks.charge", "worker-3", 814))
    stage.join_queue("orders/1042", refund)
    for part in (invoice, refund):
        _hold(stage, "catalogue", part, Kind.READ)
    stage.join_queue("catalogue", Part.task("shop.tasks.restock", "worker-2", 457), Kind.WRITE)
    for number in range(2):
        label = Part.view("POST /labels/", "shop.views.label", f"web-{1 + number}", 80)
        _hold(stage, "printers", replace(label, limit=2), Kind.PERMIT)
    stage.join_queue("printers", Part.view("POST /labels/", "shop.views.label", "web-3", 80), Kind.PERMIT)
    _hold(stage, "invoice/2026-11", invoice)
    for number in range(1043, 1050):
        _hold(stage, f"orders/{number}", Part.task("shop.tasks.charge", f"worker-{number % 4}", 812 + number % 4))


def main(folder: Path) -> None:
    """Write the pictures to a folder."""
    with Ensemble(nodes=1) as ensemble, tempfile.TemporaryDirectory() as home:
        zoo = Zoo(ensemble.hosts, ensemble)
        with Site(Path(home), zoo.url()) as site, chromium.started() as browser, staged(zoo) as stage:
            for fill, seconds in zip((_import, _deadlock, _others), OF_A_NIGHT, strict=True):
                fill(stage)
                time.sleep(seconds)
            for name, path, width, height, scale in (
                ("attention", LIST, 1040, 660, 1.5),
                ("admin", f"{LIST}?q=", 1240, 640, 1),
            ):
                look = {"viewport": {"width": width, "height": height}, "device_scale_factor": scale}
                operator = visit(browser, site, "operator", **look)
                operator.page.add_init_script("localStorage.setItem('django.admin.navSidebarIsOpen', 'false')")
                operator.open(path)
                operator.page.screenshot(path=folder / f"{name}.png", caret="initial")
                operator.page.context.close()
        zoo.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
