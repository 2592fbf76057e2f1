"""Locks in what Celery calls for a task inside its process: error handlers, methods, receivers, items of `map`."""

from contextlib import ExitStack

import pytest
from celery import chain, chord
from celery.canvas import xstarmap
from support.policytasks import POLICIES
from support.zoo import eventually

POOLS = ["prefork", *(pytest.param(pool, marks=pytest.mark.chaos) for pool in ("threads", "gevent", "solo"))]


@pytest.fixture(params=POOLS)
def worker(request):
    worker = request.getfixturevalue(f"{request.param}_worker")
    with worker.log_shown(), worker.zoo.configured():
        yield worker
        worker.zoo.assert_empty()


def task(worker, name, *args, **options):
    return worker.app.signature(f"handlers.{name}", args, **options)


def errback(worker, key, journal):
    return task(worker, "errback.wait", key, journal)


def with_errback(worker, key, journal):
    task(worker, "fails").apply_async(link_error=errback(worker, key, journal))


def with_immutable_errback(worker, key, journal):
    task(worker, "fails").apply_async(link_error=task(worker, "immutable", key, journal, immutable=True))


def with_errback_of_one_argument(worker, key, journal):
    handler = worker.app.signature("handlers.of_one_argument", kwargs={"key": key, "journal": journal})
    task(worker, "fails").apply_async(link_error=handler)


def with_patient_errback(worker, key, journal):
    """An errback that is sent again when its timeout is over, if it is a task of its own."""
    task(worker, "fails").apply_async(link_error=task(worker, "errback.patient", key, journal))


def in_a_chain(worker, key, journal):
    steps = chain(task(worker, "nothing", immutable=True), task(worker, "fails"), app=worker.app)
    steps.apply_async(link_error=errback(worker, key, journal))


def in_a_chord(worker, key, journal):
    body = task(worker, "nothing").on_error(errback(worker, key, journal))
    chord([task(worker, "nothing"), task(worker, "fails")], app=worker.app)(body)


def by_a_method(name):
    def send(worker, key, journal):
        task(worker, name, key, journal).apply_async()

    send.__name__ = name
    return send


def in_starmap(worker, key, journal):
    items = xstarmap
    items(task(worker, "immutable"), [(key, journal)], app=worker.app).apply_async()


HANDLERS = [
    with_errback,
    with_immutable_errback,
    with_errback_of_one_argument,
    with_patient_errback,
    in_a_chain,
    in_a_chord,
    *map(by_a_method, ("on_failure", "on_success", "after_return", "heard", "applies", "eager")),
    in_starmap,
]


@pytest.mark.parametrize("send", HANDLERS, ids=lambda send: send.__name__)
def test_a_handler_waits_for_its_lock(worker, tmp_path, send):
    key, journal = f"handler-{send.__name__}", tmp_path / "journal"
    with worker.zoo.hold_elsewhere(key):
        send(worker, key, str(journal))
        worker.zoo.wait_contenders(key, 2)
        assert not journal.exists()
    assert len(lines(journal)) == 1
    worker.zoo.wait_contenders(key, 0)
    assert len(lines(journal)) == 1


@pytest.mark.parametrize("name", ["on_failure", "on_success", "after_return", "heard"])
def test_a_handler_waits_without_limit(worker, tmp_path, name):
    """Plain code would wait 5 s, and a task that is called as a function not at all."""
    task(worker, name, f"limit-{name}", str(tmp_path / "journal")).apply_async()
    (line,) = lines(tmp_path / "journal")
    assert line.endswith(" task")


def test_a_handler_needs_the_lock_of_the_failed_task(worker, tmp_path):
    """Its release is on its way."""
    journals = [tmp_path / str(number) for number in range(10)]
    for journal in journals:
        handler = errback(worker, "own", str(journal))
        task(worker, "fails_under_lock", "own").apply_async(link_error=handler)
    assert [len(lines(journal)) for journal in journals] == [1] * 10


def test_a_handler_ends_by_its_policy(worker, tmp_path):
    journals = {policy: tmp_path / policy for policy in POLICIES}
    with ExitStack() as busy:
        for policy, journal in journals.items():
            busy.enter_context(worker.zoo.hold_elsewhere(f"errback-{policy}"))
            handler = task(worker, f"errback.{policy}", f"errback-{policy}", str(journal))
            failed = task(worker, "fails").apply_async(link_error=handler)
            if policy in ("wait", "retry"):
                worker.zoo.wait_contenders(f"errback-{policy}", 2)
                busy.pop_all().close()
            else:
                worker.wait_failed(failed)
                worker.run("ping")
    for policy in ("wait", "retry"):
        assert len(lines(journals.pop(policy))) == 1
    assert not any(journal.exists() for journal in journals.values())


def test_code_in_the_body_of_a_task_gets_the_error(worker, tmp_path):
    with worker.zoo.hold_elsewhere("in-body"):
        assert worker.run("handlers.calls", "in-body", str(tmp_path / "journal")) == "LockBusy "


def test_the_main_process_does_not_wait_for_a_handler(prefork_worker, tmp_path):
    """Celery calls it there if the process of the failed task has died."""
    worker, key, journal = prefork_worker, "handler-dies", tmp_path / "journal"
    with worker.log_shown(), worker.zoo.configured():
        with worker.zoo.hold_elsewhere(key):
            task(worker, "dies").apply_async(link_error=errback(worker, key, str(journal)))
            worker.zoo.wait_contenders(key, 2)
            worker.run("ping")
        (line,) = lines(journal)
        assert line.split()[0] == str(worker.process.pid)
        worker.zoo.wait_contenders(key, 0)


def lines(journal):
    """Return the runs of the handler, as soon as there is one."""
    eventually(lambda: journal.exists() and journal.read_text(), 20)
    return journal.read_text().splitlines()
