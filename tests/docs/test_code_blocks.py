"""The code in the documentation runs."""

import os
import re
import socket

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from celery.utils.imports import symbol_by_name
from django.conf import settings
from django.contrib.auth.models import AnonymousUser, User
from django.db import connection
from django.http import HttpResponse
from django.test import RequestFactory, override_settings
from django.test.utils import isolate_apps
from django.utils.module_loading import import_string
from support import viewkinds
from support.docs import BLOCK, DOCS, files_of, run, run_all, settings_of, text_of, written
from support.faults import BackgroundCall
from support.project import SETTINGS, Project

from django_zklock import conf, zk_lock, zk_read, zk_write
from django_zklock.exceptions import LockBusy, LockUpgradeRefused

SETTINGS_SHOWN = [
    pytest.param(code, id=str(page.relative_to(DOCS.parent)))
    for page in sorted([*DOCS.rglob("*.md"), DOCS.parent / "README.md"])
    for code in re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    if "\nZKLOCK = " in f"\n{code}"
]


@pytest.mark.parametrize("code", SETTINGS_SHOWN)
def test_the_settings_of_every_page_are_sound(code, monkeypatch):
    """The checks accept them, and they work in a file of `startproject` without another import."""
    monkeypatch.setenv("ZOOKEEPER", "zk1:2181/shop")
    monkeypatch.setenv("ZOOKEEPER_PASSWORD", "s3cr3t")
    names = run(code, "settings.py", {"INSTALLED_APPS": [], "MIDDLEWARE": []})
    assert conf.problems({"URL": "zk://zk1/shop", **names["ZKLOCK"]}) == []
    assert all(map(import_string, names["MIDDLEWARE"]))


@pytest.fixture
def project(tmp_path):
    """A project with the files that `how-to/test-your-code.md` shows; blocks of one file follow each other."""
    return written("how-to/test-your-code.md", tmp_path)


def test_the_examples_for_pytest_pass(project):
    done = project.succeed("-m", "pytest", "-q", "test_warehouse.py", "test_reports.py")
    files = [project.directory / name for name in ("test_warehouse.py", "test_reports.py")]
    shown = sum(file.read_text().count("\ndef test_") for file in files)
    assert shown > 5
    assert f"{shown} passed" in done.stdout, done.stdout


def test_the_examples_for_test_cases_pass(project):
    done = project.succeed("manage.py", "test", "tests")
    assert "Ran 4 tests" in done.stderr


def test_one_line_gives_locks_to_all_tests(project):
    project.write("project_settings.py", SETTINGS + (project.directory / "settings.py").read_text())
    test = "import unittest, warehouse\nclass T(unittest.TestCase):\n    def test(self): warehouse.sell(1, print)\n"
    project.write("test_all.py", test)
    (option,) = re.findall(r"^(zklock_\w+ = true)$", text_of("how-to/test-your-code.md"), re.MULTILINE)
    assert "Ran 1 test" in project.succeed("manage.py", "test", "test_all").stderr
    assert "1 passed" in project.succeed("-m", "pytest", "-q", "-o", option.replace(" ", ""), "test_all.py").stdout


def test_the_example_without_a_test_runner_runs(project):
    done = project.succeed("script.py", DJANGO_SETTINGS_MODULE="project_settings")
    assert re.search(r"^zk://127\.0\.0\.1:\d+/test-.*\nreport\n  holds  script\.py ", done.stdout), done.stdout


CONSUMER = """
import consumer
import pytest

from django_zklock import zk_lock
from django_zklock.exceptions import InvalidToken, StaleToken


def test_the_message_of_a_former_holder_is_not_written(zklock, db):
    with zk_lock("account/carol") as hold:
        former = {"account": "carol", "fence": hold.signed_token()}
    with zk_lock("account/carol") as hold:
        written = []
        present = {"account": "carol", "fence": hold.signed_token()}
        consumer.consume(present, lambda message, token: written.append(token))
        assert written == [hold.token]
    with pytest.raises(StaleToken):
        consumer.consume(former, lambda message, token: written.append(token))
    with pytest.raises(InvalidToken):
        consumer.consume({**present, "account": "dave"}, lambda message, token: written.append(token))
"""


def test_the_examples_of_fencing_another_service_pass(tmp_path):
    page = "how-to/fence-another-service.md"
    project = written(page, tmp_path, {"test_consumer.py": CONSUMER}, unnamed=1)
    settings = f'{settings_of(page, unnamed=1)}ROOT_URLCONF = "service"\nSTATIC_URL = "static/"\n'
    project.write("service_settings.py", settings)
    done = project.succeed("-m", "pytest", "-q", "--ds", "service_settings", "test_service.py", "test_consumer.py")
    assert "3 passed" in done.stdout, done.stdout


def test_the_examples_for_celery_run(tmp_path, zoo):
    begin = "import django; django.setup(); from celery import Celery; Celery('documented')"
    code = "\n".join([begin, *files_of("how-to/celery.md").values()])
    shown = """
print([settle.apply(("7",)).get(), close.apply(("7",)).get()])
print([report.apply(("monday",)).get(), fetch_rates.apply().get()])
"""
    with zoo.hold_elsewhere("rates"):
        env = {"DJANGO_SETTINGS_MODULE": "project_settings", "ZKLOCK_URL": zoo.url()}
        done = Project(tmp_path).succeed("-c", code + shown, **env)
    assert done.stdout == (
        "['account 7 is settled', 'account 7 is closed']\n['report of monday', 'another task does it']\n"
    )


@pytest.mark.django_db(transaction=True)
def test_the_examples_for_transactions_run(zoo, rf):
    request, stranger = rf.post("/"), rf.post("/")
    request.user, stranger.user = User(), AnonymousUser()
    with isolate_apps():
        shop = run_all("how-to/transactions.md", __name__="shop")
    item = shop["Item"]
    with connection.schema_editor() as editor:
        editor.create_model(item)
    try:
        item.objects.create(sku="lamp")
        shop["restock"]("lamp", 3)
        shop["sell"]("lamp")
        async_to_sync(shop["asell"])("lamp")
        assert item.objects.get().left == 1
        for view in (shop["buy"], shop["Buy"].as_view()):
            assert view(request, sku="lamp").content == b"sold"
            with zoo.hold_elsewhere("inventory/lamp"):
                assert view(stranger, sku="lamp").status_code == 302
        assert shop["ItemViewSet"].as_view({"post": "sell"})(rf.post("/"), pk="lamp").render().status_code == 200
        shop["sell_all"](["lamp"])
        assert item.objects.get().left == 0
    finally:
        with connection.schema_editor() as editor:
            editor.delete_model(item)


@pytest.mark.django_db
@pytest.mark.parametrize("key", ["MIDDLEWARE", "REST_FRAMEWORK"])
def test_the_settings_for_conflicts_answer(zoo, client, key):
    shown = run_all("reference/locks.md")
    with override_settings(ROOT_URLCONF="support.viewkinds", **{key: shown[key]}), zoo.hold_elsewhere(viewkinds.KEY):
        assert client.get("/late-lock/").status_code == 409


@pytest.mark.django_db(transaction=True)
def test_the_examples_for_several_locks_run(zoo):
    bank = run_all("how-to/several-locks.md")
    assert list(bank["transfer"]("2", "1", 5)) == ["account/1", "account/2"]
    assert async_to_sync(bank["atransfer"])("2", "1", 5) > 0
    assert bank["ship"](7, "north") == "order 7 leaves north"
    assert bank["book"]("2", "1", 5) == ["account/1", "account/2"]
    assert bank["restock"](["lamp", "desk"]) == 2
    with zoo.hold_elsewhere("inventory/desk"), pytest.raises(LockBusy):
        bank["restock"](["lamp", "desk"])


def test_the_example_of_inspection_runs(zoo, capsys):
    watching = run_all("reference/inspection.md")
    with zk_lock("report/{month}", fields={"month": "may"}):
        watching["report"]()
        assert watching["holder_of"]("report/may") == socket.gethostname()
    assert watching["holder_of"]("report/may") is None
    assert re.fullmatch(rf"report/may: {socket.gethostname()} pid {os.getpid()} \S+, 0 wait\n", capsys.readouterr().out)


def test_the_examples_of_unique_tasks_run(tmp_path, zoo):
    project = written("how-to/unique-tasks.md", tmp_path)
    begin = "import django; django.setup(); from celery import Celery; Celery(broker='memory://'); import bounded, call"
    project.succeed("-c", begin, DJANGO_SETTINGS_MODULE="project_settings", ZKLOCK_URL=zoo.url())
    zoo.client.delete(f"{zoo.base}/%21unique", recursive=True)


def test_the_example_for_several_beats_makes_a_shared_scheduler():
    blocks = re.findall(r"^```python\n(.*?)^```$", text_of("how-to/celery-beat.md"), re.MULTILINE | re.DOTALL)
    app = run("".join(blocks))["app"]
    assert app.conf.zklock_beat_scheduler == "django"
    app.conf.zklock_beat_scheduler = None  # what it names need not be installed
    scheduler = symbol_by_name(app.conf.beat_scheduler)(app, lazy=True)
    assert "schedule -> myproject" in scheduler.info
    assert "celery.beat.PersistentScheduler" in scheduler.info


README = (DOCS.parent / "README.md").read_text()


def test_the_examples_of_the_readme_and_of_the_home_page_run(zoo, rf):
    files = dict(BLOCK.findall(README))
    pay, report = run(files["views.py"], "views.py")["pay"], run(files["tasks.py"], "tasks.py")["report"]
    for view in (pay, run(files_of("index.md")["views.py"], "views.py")["pay"]):
        assert view(rf.get("/"), pk=7).content == b"order 7 is paid"
    assert report.apply(("monday",)).get() == "report of monday"
    with zoo.hold_elsewhere("report/monday"), pytest.raises(LockBusy):
        report.apply(("monday",), throw=True)
    at_once = override_settings(ZKLOCK={**settings.ZKLOCK, "DEFAULTS": {"timeout": 0}})
    with zoo.hold_elsewhere("order/7"), at_once, pytest.raises(LockBusy):
        pay(rf.get("/"), pk=7)


def sides():
    def can_have(kind):
        try:
            with zk_lock("catalogue/berlin", kind=kind, timeout=0):
                return True
        except LockBusy:
            return False

    return BackgroundCall(lambda: ",".join(filter(can_have, ("read", "write")))).result()


@pytest.fixture
def read_write(zoo):
    """Run the page. The functions that its code calls note which side is free meanwhile."""
    seen = []

    def note(*_, **__):
        seen.append(sides())
        return ["wrong"]

    def respond(*_):
        return HttpResponse(note())

    names = dict.fromkeys(("read_all", "write_all", "check_all", "find_mistakes"), note)
    names |= {"render_catalogue": respond, "store_catalogue": respond, "find_sold_out": sync_to_async(note)}
    return run_all("how-to/more-ways-to-lock.md", seen=seen, **names)


def test_readers_and_writers_exclude_each_other_as_the_page_says(read_write):
    read_write["export"]()
    read_write["replace"]()
    request = RequestFactory().get("/")
    assert read_write["show"](request, shop="berlin").status_code == 200
    assert read_write["upload"](request, shop="berlin").status_code == 200
    assert async_to_sync(read_write["sold_out"])("berlin") == ["wrong"]
    assert read_write["seen"] == ["read", "", "read", "", "read"]


def test_a_reader_is_refused_the_write_side(read_write):
    assert read_write["correct"]("berlin") == ["wrong"]
    assert read_write["seen"] == ["read", "", ""]
    advice = r"would wait for its own release.*zk_read\(\) inside zk_write"
    with zk_read("catalogue/berlin"), pytest.raises(LockUpgradeRefused, match=advice), zk_write("catalogue/berlin"):
        pass
