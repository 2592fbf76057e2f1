"""Log handlers run on a thread of their own if a protocol thread logs."""

import logging
import os
import re
import threading
import time
import traceback
from contextvars import ContextVar
from pathlib import Path
from unittest import TestCase

import pytest

import django_zklock
from django_zklock.core import log
from django_zklock.core.zk.loop import protocol_thread
from django_zklock.testing import flush_logs

PACKAGE = Path(django_zklock.__file__).parent


class Handler(logging.Handler):
    """Keeps records. While `closed` is set, it blocks; it raises what `error` is."""

    def __init__(self):
        super().__init__()
        self.records = []
        self.threads = []
        self.entered = threading.Event()
        self.open = threading.Event()
        self.open.set()
        self.error = None

    def handle(self, record):
        self.threads.append(threading.current_thread().name)
        self.records.append(record)
        self.entered.set()
        self.open.wait(30)
        if self.error is not None:
            raise self.error
        return True


@pytest.fixture
def handler():
    log.flush(10)  # what other tests have logged
    handler = Handler()
    parent = logging.getLogger("django_zklock")
    parent.addHandler(handler)
    parent.setLevel(logging.INFO)
    yield handler
    handler.open.set()
    log.flush(10)
    parent.removeHandler(handler)
    parent.setLevel(logging.NOTSET)


def on_protocol_thread(call):
    thread = protocol_thread("zklock-test", call)
    thread.start()
    thread.join(10)
    assert not thread.is_alive()


logger = log.Logger("django_zklock.test")
always = log.Logger("django_zklock.always", always=True)


def log_all(marker):
    logger.debug("debug")
    logger.info("info %s", marker)
    logger.warning("warning", extra={"lock": "k"})
    logger.error("error %s %r", 1, "2")
    try:
        raise ValueError("v")
    except ValueError:
        logger.exception("exception")
    logger.log(logging.CRITICAL, "critical")


def described(record):
    """Return what both ways of logging must agree on."""
    fields = ["name", "levelname", "pathname", "lineno", "funcName", "args", "lock", "origin"]
    error = record.exc_info and record.exc_info[1]
    return {"message": record.getMessage(), "error": error and repr(error)} | {
        field: getattr(record, field, None) for field in fields
    }


def test_records_of_a_protocol_thread_are_as_those_of_any_thread(handler, monkeypatch):
    before = logging.getLogRecordFactory()

    def factory(*args, **kwargs):
        record = before(*args, **kwargs)
        record.origin = "factory"
        threads.append(threading.current_thread().name)
        return record

    threads = []
    logging.getLogger("django_zklock").setLevel(logging.DEBUG)
    logging.setLogRecordFactory(factory)
    try:
        log_all("m")
        direct, handler.records = handler.records, []
        threads.clear()
        on_protocol_thread(lambda: log_all("m"))
        assert log.flush(10)
    finally:
        logging.setLogRecordFactory(before)
    assert [described(record) for record in handler.records] == [described(record) for record in direct]
    assert {record.threadName for record in handler.records} == {"zklock-test"}
    assert set(threads) == {"zklock-log"} == set(handler.threads[len(direct) :])


def test_an_agent_that_wraps_the_making_of_records_sees_all(handler, monkeypatch):
    """Its attributes are in the user's format, and a record without them could not be written."""
    make = logging.Logger.makeRecord

    def wrapped(self, name, level, *args, **kwargs):
        record = make(self, name, level, *args, **kwargs)
        record.traced = level >= logging.INFO
        return record

    monkeypatch.setattr(logging.Logger, "makeRecord", wrapped)
    on_protocol_thread(lambda: logger.info("of the protocol"))
    always.warning("of the end of a block")
    logger.info("direct")
    assert log.flush(10)
    assert [record.traced for record in handler.records] == [True] * 3


def test_a_record_has_the_time_at_which_it_was_made(handler):
    handler.open.clear()
    on_protocol_thread(lambda: logger.info("first"))
    handler.entered.wait(10)
    on_protocol_thread(lambda: logger.info("second"))
    made_before = time.time()
    assert not log.flush(0.01)  # the exit waits for slow handlers up to a deadline
    handler.open.set()
    assert log.flush(10)
    assert [record.getMessage() for record in handler.records] == ["first", "second"]
    assert all(record.created <= made_before for record in handler.records)


def test_a_handler_that_blocks_delays_no_protocol_thread_and_the_queue_is_bounded(handler, monkeypatch):
    monkeypatch.setattr(log, "MOST_CALLS", 5)
    handler.open.clear()
    on_protocol_thread(lambda: logger.info("blocks"))
    handler.entered.wait(10)
    for number in range(12):
        on_protocol_thread(lambda number=number: logger.info("record %d", number))
    handler.open.set()
    assert log.flush(10)
    assert [record.getMessage() for record in handler.records] == ["blocks", *(f"record {n}" for n in range(5))]


@pytest.mark.parametrize("error", [RuntimeError("no disk"), SystemExit("no disk")], ids=["an error", "an exit"])
def test_a_handler_that_raises_keeps_no_record_from_the_next_handler(handler, capfd, error):
    handler.error = error
    on_protocol_thread(lambda: logger.info("a"))
    on_protocol_thread(lambda: logger.info("b"))
    assert log.flush(10)
    assert [record.getMessage() for record in handler.records] == ["a", "b"]
    assert capfd.readouterr().err.count(f"{type(error).__name__}: no disk") == 2


def test_a_test_finds_the_records_of_the_threads_of_the_package():
    with TestCase().assertLogs("django_zklock", "WARNING") as logs:
        on_protocol_thread(lambda: logger.warning("lost"))
        flush_logs()
    assert [record.getMessage() for record in logs.records] == ["lost"]


def test_a_warning_of_a_protocol_thread_is_shown_on_another():
    """`warnings.showwarning` is other people's code, too."""
    shown = []
    on_protocol_thread(lambda: log.defer(lambda text: shown.append(f"{threading.current_thread().name}: {text}"), "w"))
    assert log.flush(10)
    assert shown == ["zklock-log: w"]


def test_a_forked_child_logs_on_its_own_thread(handler):
    """It inherits no thread, and no records: the parent handles these."""
    handler.open.clear()
    on_protocol_thread(lambda: logger.info("parent"))
    on_protocol_thread(lambda: logger.info("parent, too"))
    handler.entered.wait(10)
    child = os.fork()
    if not child:
        code = 1
        try:
            handler.__init__()  # the parent's thread may have held its mutex
            on_protocol_thread(lambda: logger.info("child"))
            assert log.flush(10)
            assert [record.getMessage() for record in handler.records] == ["child"]
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    handler.open.set()
    assert log.flush(10)
    assert [record.getMessage() for record in handler.records] == ["parent", "parent, too"]


def test_all_modules_use_these_loggers():
    """A plain logger on a protocol thread would call the handlers there."""
    plain = re.compile(r"^\w+ = logging\.getLogger", re.MULTILINE)
    modules = [path for path in PACKAGE.rglob("*.py") if "server" not in path.relative_to(PACKAGE).parts]
    assert [str(path) for path in modules if plain.search(path.read_text())] == []


def test_a_record_of_the_end_of_a_block_keeps_the_context_of_its_thread(monkeypatch):
    """A filter adds the id of the request."""
    request_id = ContextVar("request_id")
    request_id.set("r-1")
    seen = []

    def see(record):
        seen.append((request_id.get(), threading.current_thread().name, record.threadName))
        return True

    monkeypatch.setattr(always.logger, "filters", [see])
    with TestCase().assertLogs("django_zklock.always") as caught:
        always.warning("a record")
        flush_logs()
    assert [record.getMessage() for record in caught.records] == ["a record"]
    assert seen == [("r-1", "zklock-log", threading.current_thread().name)]


def test_a_handler_that_hangs_or_raises_touches_no_end_of_a_block(handler):
    handler.open.clear()
    handler.error = RuntimeError("no disk")
    for number in range(20):
        always.warning("record %d", number)
    assert handler.entered.wait(10)
    assert len(handler.records) == 1
    handler.open.set()
    assert log.flush(10)
    assert len(handler.records) == 20


def test_a_handler_may_log_itself(handler, monkeypatch):
    """It may use a database under a lock, whose end logs."""
    inner = log.Logger("django_zklock.inner", always=True)
    forward = logging.Handler()
    forward.emit = lambda record: inner.warning("from a handler")
    outer = log.Logger("django_zklock.outer")
    monkeypatch.setattr(outer.logger, "handlers", [forward])
    on_protocol_thread(lambda: outer.warning("of the protocol"))
    assert log.flush(10)
    assert log.flush(10)
    assert [record.getMessage() for record in handler.records] == ["of the protocol", "from a handler"]
