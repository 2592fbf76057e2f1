"""The guides to holds, limits and operators: the files of each page pass a test in a project of their own."""

import pytest
from support.docs import assert_passes, settings_of, written

ASKING = """
import threading
from django_zklock.operations import request_release
from celery import Celery
from reindexing import reindex
import pytest
from django_zklock.exceptions import LockChangedHands
import tasks

app = Celery("documented", broker="memory://")
app.set_default()


class Asks(list):
    def append(self, document):
        super().append(document)
        if len(self) == 1:
            request_release("search/index", "deploy 42", by="anna")
            threading.Event().wait(3)


def test_a_loop_stops_when_somebody_asks(zklock):
    index = Asks()
    assert reindex(["a", "b", "c"], index) == "stopped for anna: deploy 42"
    assert index == ["a"]
    assert reindex(["a"], []) == "done"
    with pytest.raises(LockChangedHands):
        request_release("search/index", "deploy 42", by="anna")


def test_a_task_goes_on_until_somebody_asks(zklock):
    assert tasks.reindex_all(["a"]) == []
"""

BOUNDED = """
import pytest
from bounded import import_prices, nightly
from django_zklock import zk_lock
from django_zklock.exceptions import LockBusy, LockLost
from watching import slow


def test_work_that_takes_too_long_is_told_of_and_stopped(zklock, settings):
    import threading
    settings.ZKLOCK = {**settings.ZKLOCK, "LOCKS": {"short": {"path": "short", "max_hold": 1.2, "warn_after": 0.2}}}
    with pytest.raises(LockLost, match="was lost: it was held for longer than max_hold, 1.2 s"), zk_lock("short"):
        threading.Event().wait(20)
    assert slow == ["short"]
    done = []
    import_prices("acme", [lambda: done.append(1)])
    assert done == [1]


def test_a_job_is_done_once(zklock):
    done = []
    nightly(lambda: done.append("job"))
    with pytest.raises(LockBusy, match="held for at least 300 s"):
        nightly(lambda: done.append("job"))
    assert done == ["job"]
"""

LINGERING = """
from django_zklock.inspection import look_at
from importing import import_prices


def test_all_rows_have_one_znode(zklock):
    seen = []
    import_prices(["a", "b", "c"], lambda row: seen.append(look_at("prices/acme").holders[0].token))
    assert len(seen) == 3
    assert len(set(seen)) == 1
    assert look_at("prices/acme") is not None
"""

STEPPING_IN = """
import pytest
from intervening import drained_deploy, free, make_way
from django_zklock import zk_lock
from django_zklock.exceptions import LockBusy, LockLost


def test_a_deploy_is_drained(zklock):
    said = []
    def deploy():
        with pytest.raises(LockBusy) as caught, zk_lock("reports/nightly", timeout=0):
            pass
        said.append(str(caught.value))
    drained_deploy(deploy)
    assert "is held by operator anna until 20" in said[0] and said[0].endswith("UTC: deploy 42.")
    with zk_lock("reports/nightly", timeout=0):
        pass


def test_a_lock_is_broken(zklock):
    with pytest.raises(LockLost, match="was lost: its znode was deleted by another session"):
        with zk_lock("invoice/7") as hold:
            assert free("invoice/7", "stuck since Monday", "anna").holder.token == hold.token
            hold.wait_lost(2)


def test_a_holder_is_asked(zklock):
    with zk_lock("invoice/7") as hold:
        (holder,) = make_way("invoice/7", "anna")
        assert holder.token == hold.token
        assert str(hold.wait_release_requested(5)) == "anna: deploy 42"
"""

PERMITS = """
from reports import build, print_label
from slowing import full_speed, slow_down
from watching import in_use

from django_zklock import zk_lock


def test_permits_are_taken(zklock):
    printed = []
    print_label("fragile", printed)
    assert printed[0][1] == "fragile" and printed[0][0] > 0
    assert build("monthly") == "monthly is built"


def test_a_limit_counts_until_it_is_cleared(zklock):
    limit = slow_down("monthly", "anna")
    assert (limit.limit, limit.by, limit.reason) == (1, "anna", "the replica lags")
    with zk_lock("reports/monthly", limit=3):
        assert in_use("reports/monthly") == (1, 1)
    assert full_speed("monthly", "anna")
    with zk_lock("reports/monthly", limit=3):
        assert in_use("reports/monthly") == (1, 3)
    assert in_use("reports/monthly") == (0, None)
"""

ONE_LAYER = """
from types import SimpleNamespace

import pytest
from asgiref.sync import async_to_sync
from celery import Celery
from django.test import RequestFactory

app = Celery("documented", broker="memory://")
app.set_default()

import tasks
import views


@pytest.mark.django_db(transaction=True)
def test_the_callers_of_a_service_hold_its_lock(zklock):
    async def auser():
        return request.user

    request = RequestFactory().get("/")
    request.user, request.auser = SimpleNamespace(is_authenticated=True), auser
    for view in (views.cancel_order, async_to_sync(views.acancel_order)):
        assert view(request, pk=7).content == b"order 7 is cancelled"
    assert tasks.cancel_later.apply((7,)).get() == "order 7 is cancelled"
    zklock.assert_free("order/7")
"""

STREAMING = """
import pytest
import reports
from django.test import RequestFactory


def test_the_stock_does_not_change_under_a_report(zklock):
    parts = iter(reports.streamed(RequestFactory().get("/")))
    assert next(parts) == b"lamp,3\\r\\n"
    zklock.assert_held("stock")
    assert list(parts) == [b"desk,1\\r\\n"]
    zklock.assert_free("stock")


@pytest.mark.parametrize("view", [reports.short, reports.long])
def test_a_complete_body_needs_no_lock(zklock, view):
    response = view(RequestFactory().get("/"))
    zklock.assert_free("stock")
    assert response.getvalue() == b"lamp,3\\r\\ndesk,1\\r\\n"
    response.close()
"""

COUNTED = """
from prometheus_client import REGISTRY
from counted import metrics
from django_zklock import zk_lock


def test_both_registries_count(zklock):
    with zk_lock("inventory", fields={"sku": "red-shoe"}):
        pass
    labels = {"lock": "inventory/{sku}", "kind": "lock"}
    zklock.eventually(lambda: REGISTRY.get_sample_value("zklock_hold_seconds_count", labels) == 1)
    zklock.eventually(lambda: b'zklock_acquired_total{kind="lock",lock="inventory/{sku}"} 1.0' in metrics())
    assert b"red-shoe" not in metrics()
"""

TRACED = """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from django_zklock import zk_lock


def test_the_global_provider_gets_the_spans(zklock):
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    with zk_lock("inventory", fields={"sku": "4711"}):
        pass
    zklock.eventually(lambda: len(exporter.get_finished_spans()) == 2)
    assert [span.name for span in exporter.get_finished_spans()] == ["zklock.acquire", "zklock.hold"]
"""

NOTED = """
import json

import logs
import pytest
import sentry_sdk
import structlog
from django_zklock import zk_lock
from payments import pay


def test_a_line_under_a_lock_names_it(zklock, capsys):
    with zk_lock("a") as hold:
        structlog.get_logger().info("charged", amount=5)
    structlog.get_logger().info("done")
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert first == {"event": "charged", "amount": 5, "lock": "a", "token": hold.token}
    assert second == {"event": "done"}


def test_an_error_is_reported_with_its_lock(zklock):
    events = []
    sentry_sdk.init("http://key@localhost/1", before_send=lambda event, hint: events.append(event))
    with sentry_sdk.isolation_scope(), pytest.raises(RuntimeError):
        try:
            pay("7")
        except RuntimeError:
            sentry_sdk.capture_exception()
            raise
    (event,) = events
    assert event["contexts"]["lock"]["key"] == "invoice/7"
    assert int(event["contexts"]["lock"]["token"]) > 0
"""

FENCED = """
from types import SimpleNamespace

import pytest
from books import reset, work
from books.models import Account
from django_zklock import zk_lock
from django_zklock.contrib.fences.models import Fence
from django_zklock.exceptions import StaleToken

pytestmark = pytest.mark.django_db(transaction=True)


def test_the_functions_do_as_they_say(zklock):
    work.open_account(1, "ann")
    work.deposit(1, 130)
    work.withdraw(1, 30)
    work.rename(Account(pk=1), "bob")
    work.add_interest(10)
    account = Account.objects.get()
    assert (account.owner, account.balance) == ("bob", 110)
    assert account.fencing_token > 0
    work.close_account(1)
    assert account in Account.objects.all()
    work.close_the_books()
    work.close_account(1)
    assert not Account.objects.exists()


async def deposit():
    await work.adeposit(1, 5)


def test_the_async_one_does_so(zklock):
    import asyncio
    work.open_account(1, "ann")
    asyncio.run(deposit())
    assert Account.objects.get().balance == 5


def test_a_stale_holder_is_refused(zklock):
    with zk_lock("account/1") as hold:
        old = SimpleNamespace(key=hold.key, token=hold.token)
    work.open_account(1, "ann")
    with pytest.raises(StaleToken):
        work.add(old, 1, 100)


def test_tokens_of_lost_data_are_set_back(zklock):
    work.open_account(1, "ann")
    Account.objects.update(fencing_token=2**62)
    work.close_the_books()
    Fence.objects.update(token=2**62)
    for write in (lambda: work.deposit(1, 1), work.close_the_books):
        with pytest.raises(StaleToken, match="lost its data"):
            write()
    reset.reset()
    work.deposit(1, 1)
    work.close_the_books()
"""

REDELIVERED = """
import pytest
from books.models import Account, Deposit
from books.tasks import deposit
from celery import Celery
from django_zklock.exceptions import StaleToken

pytestmark = pytest.mark.django_db(transaction=True)
app = Celery("books", set_as_current=True)
app.conf.update(task_always_eager=True, task_eager_propagates=True)


def test_the_same_work_counts_once(zklock):
    account = Account.objects.create()
    for ref in ("a", "a", "b"):
        deposit.delay(account.pk, 100, ref)
    account.refresh_from_db()
    assert account.balance == 200
    assert [each.ref for each in Deposit.objects.order_by("ref")] == ["a", "b"]


def test_a_stale_copy_leaves_nothing(zklock):
    account = Account.objects.create(fencing_token=2**62)
    with pytest.raises(StaleToken):
        deposit._orig_run(account.pk, 100, "a")  # behind Celery's retries
    assert not Deposit.objects.exists()
"""

GUIDES = {
    "how-to/bound-a-hold": BOUNDED,
    "how-to/intervene": ASKING,
    "how-to/more-ways-to-lock": PERMITS + LINGERING,
    "how-to/lock-a-view": STREAMING,
    "how-to/where-do-i-lock": ONE_LAYER,
    "reference/inspection": STEPPING_IN,
}
OBSERVED = {"metrics": COUNTED, "traces": TRACED, "logs": NOTED}


@pytest.mark.parametrize("page", GUIDES)
def test_the_examples_of_a_guide_do_as_it_says(page, tmp_path):
    assert_passes(written(f"{page}.md", tmp_path), GUIDES[page])


@pytest.mark.parametrize("kind", OBSERVED)
def test_metrics_traces_and_logs_are_as_the_guide_says(kind, tmp_path):
    page = "how-to/observe.md"
    project = written(page, tmp_path, {"observed_settings.py": settings_of(page)})
    assert_passes(project, OBSERVED[kind], "--ds=observed_settings")


def test_the_example_without_the_app_has_the_gauge_of_incidents_in_one_process(tmp_path):
    project = written("how-to/observe.md", tmp_path, {"shop/__init__.py": ""})
    (tmp_path / "shop.py").unlink()
    settings = "from project_settings import *\nINSTALLED_APPS += ['shop.apps.ShopConfig']\n"
    project.write("shop_settings.py", settings)
    code = "import django; django.setup(); import prometheus_client as lib; print(lib.generate_latest().decode())"
    shown = [
        project.succeed("-c", code, DJANGO_SETTINGS_MODULE="shop_settings", ZKLOCK_INCIDENTS=incidents).stdout
        for incidents in ("1", "0")
    ]
    assert ["zklock_incidents" in text for text in shown] == [True, False]
    assert all("zklock_suspensions_total" in text for text in shown)


BOOKS = """
INSTALLED_APPS += ["books"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "books.sqlite3"}}
"""


@pytest.mark.parametrize(("page", "test"), [("fence-your-rows", FENCED), ("survive-redelivery", REDELIVERED)])
def test_the_examples_with_rows_do_as_the_guide_says(page, test, tmp_path):
    packages = {"books/__init__.py": "", "books/migrations/__init__.py": ""}
    settings = f"{settings_of(f'how-to/{page}.md')}{BOOKS}"
    project = written(f"how-to/{page}.md", tmp_path, {**packages, "books_settings.py": settings})
    project.succeed("manage.py", "makemigrations", "books", DJANGO_SETTINGS_MODULE="books_settings")
    (migration,) = project.directory.glob("books/migrations/0001_*.py")
    assert "('fencing_token', models.BigIntegerField(default=0, editable=False))" in migration.read_text()
    assert "zklock" not in migration.read_text()
    assert_passes(project, test, "--ds=books_settings")
