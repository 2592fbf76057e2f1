"""The code in the how-to about redelivery has each effect once, in a project that does as it says."""

from __future__ import annotations

from pathlib import Path

from support.docs import assert_passes, written

SETTINGS = """
from project_settings import *
from books.settings import *
INSTALLED_APPS = ["django_zklock", "books"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "books.sqlite3"}}
"""

TEST = """
import pytest
from datetime import timedelta
from books.models import Account, Deposit, Order
from books.sweep import LATE, send_again
from books.tasks import deposit
from celery import Celery
from django.utils import timezone
from django_zklock import zk_lock
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


def test_a_lost_message_is_sent_again(zklock):
    account = Account.objects.create()
    for ref in ("done", "lost", "new"):
        Order.objects.create(ref=ref, account=account, amount=100)
    Order.objects.exclude(ref="new").update(created=timezone.now() - LATE - timedelta(minutes=1))
    deposit.delay(account.pk, 100, "done")
    send_again.delay()
    assert [each.ref for each in Deposit.objects.order_by("ref")] == ["done", "lost"]


def test_a_stale_copy_leaves_nothing(zklock):
    account = Account.objects.create(fencing_token=2**62)
    with pytest.raises(StaleToken):
        deposit._orig_run(account.pk, 100, "a")  # behind Celery's retries
    assert not Deposit.objects.exists()
"""


def test_the_examples_have_their_effect_once(tmp_path: Path) -> None:
    """A task that is delivered twice books once, a lost one is sent again, and a stale fence books nothing."""
    packages = {"books/__init__.py": "", "books/migrations/__init__.py": ""}
    project = written("how-to/survive-redelivery.md", tmp_path, {**packages, "books_settings.py": SETTINGS})
    project.succeed("manage.py", "makemigrations", "books", DJANGO_SETTINGS_MODULE="books_settings")
    assert_passes(project, TEST, 3, "--ds=books_settings")
