"""The code in the how-to about fences runs, in a project that does as it says."""

from __future__ import annotations

from pathlib import Path

from support.docs import assert_passes, written

SETTINGS = """
from project_settings import *
from books.settings import INSTALLED_APPS
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "books.sqlite3"}}
"""

TEST = """
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


def test_the_examples_work_in_a_project(tmp_path: Path) -> None:
    """From the model and its migration to the work."""
    packages = {"books/__init__.py": "", "books/migrations/__init__.py": ""}
    project = written("how-to/fence-your-rows.md", tmp_path, {**packages, "books_settings.py": SETTINGS})
    env = {"DJANGO_SETTINGS_MODULE": "books_settings"}
    for arguments in (["makemigrations", "books"], ["migrate", "-v0"]):
        project.succeed("manage.py", *arguments, **env)
    (migration,) = project.directory.glob("books/migrations/0001_*.py")
    assert "('fencing_token', models.BigIntegerField(default=0, editable=False))" in migration.read_text()
    assert "zklock" not in migration.read_text()
    assert_passes(project, TEST, 4, **env)
