"""A shop on a busy day, as its locks show it: for pictures, and for tests of all pages."""

from django_zklock.core.queue.nodes import Kind
from support.browser.actors import Part


def busy_shop(stage):
    charge = Part.task("shop.tasks.charge", "worker-3", 812)
    restock = Part.task("shop.tasks.restock", "worker-1", 455)
    refund = Part.view("POST /orders/<int:pk>/refund/", "shop.views.refund", "web-2", 78)
    invoice = Part.view("GET /invoices/<slug:month>/", "shop.views.invoice", "web-1", 77)
    report = Part("cron-1", 9, what="manage.py nightly_report")
    for part in (charge, refund, restock, invoice):
        stage.join_queue("orders/1042", part)
    stage.reserve("shop.tasks.update_feed", "feed/shoes", "1b68d6cb-24cb-4041-8ce1-1dd19c9c43fb")
    stage.reserve("shop.tasks.report", "report/weekly", "t2")
    stage.join_queue_raw("orders/1042", f"{'ab' * 16}__lock__", b"10.0.3.9")
    stage.join_queue("invoice/2026-11", invoice)
    stage.join_queue("report/nightly", report)
    stage.join_queue("report/nightly", restock)
    for part in (invoice, refund):
        stage.join_queue("prices", part, Kind.READ)
    stage.join_queue("prices", restock, Kind.WRITE)
    for index in range(3):
        about = {"request": "POST /labels/"}
        stage.join_queue(
            "printers", Part(f"web-{index}", 80 + index, what="shop.views.label", about=about, limit=2), Kind.PERMIT
        )
    for index in range(12):
        stage.join_queue("inventory/lamp", Part.task("shop.tasks.restock", f"worker-{index % 4}", 300 + index))
    for number in range(7):
        part = Part.task("shop.tasks.charge", f"worker-{number % 4}", 812 + number)
        stage.join_queue(f"orders/{1043 + number}", part)
