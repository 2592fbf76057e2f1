"""Raise exceptions at a chosen moment: at the n-th line of some functions, or when a timer fires."""

import contextlib
import functools
import gc
import inspect
import linecache
import random
import signal
import sys
import threading
import time
from types import ModuleType

import pytest

from django_zklock import zk_lock
from django_zklock.core.execution.owner import current_owner
from django_zklock.core.locks.held import held_locks
from support.faults import BackgroundCall
from support.primitives import lingering_waiters
from support.work import blocks_of
from support.zoo import eventually

strides = pytest.mark.parametrize(
    "stride", [pytest.param(197, id="some lines"), pytest.param(1, id="all lines", marks=pytest.mark.chaos)]
)
"""For a sweep over all lines of some code: from one line that is struck to the next."""

long_strides = pytest.mark.parametrize(
    "stride", [pytest.param(197, id="some lines"), pytest.param(11, id="many lines", marks=pytest.mark.chaos)]
)
"""Strides for code with so many lines that a sweep over all takes minutes. Each run begins at another line."""


def functions_of(*modules):
    functions = []
    for module in modules:
        things = vars(module).values() if isinstance(module, ModuleType) else [module]
        for thing in things:
            if isinstance(module, ModuleType) and getattr(thing, "__module__", "") != module.__name__:
                continue
            members = vars(thing).values() if isinstance(thing, type) else [thing]
            plain = [getattr(member, "fget", getattr(member, "__func__", member)) for member in members]
            # Without decorators of other modules, whose code many others run, too, such as `contextmanager`.
            functions += [inspect.unwrap(function) for function in plain if hasattr(function, "__code__")]
    return functions


def assert_none_listed():
    assert not held_locks._kept
    assert not held_locks.all()
    assert not held_locks._guards


class Struck(Exception):
    """Raised by a signal handler anywhere in the main thread, like the exception of a soft time limit."""


def strike(number, frame):
    raise Struck(number)


@contextlib.contextmanager
def handled(handler, *numbers):
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


class LineStrike:
    """
    Raises `Struck` at one line event of the given functions; tells what line it was.

    Spared are the lines with a bare `try:`, where no handler of a signal ever runs, and those of `release` before its
    `with CleanupOnError`: a release that is struck before it begins has not begun.
    """

    def __init__(self, functions, at):
        self._codes = {function.__code__ for function in functions}
        self._left = at
        self.where = ""
        self.second = ""  # where it was struck again

    def __enter__(self):
        self._previous = sys.gettrace()
        sys.settrace(self._on_call)
        return self

    def __exit__(self, *_):
        sys.settrace(self._previous)

    def _on_call(self, frame, event, argument):
        return self._on_line if frame.f_code in self._codes else None

    def _on_line(self, frame, event, argument):
        if event == "line" and not self.where and not _is_try(frame) and not _is_before_release(frame):
            self._left -= 1
            if self._left < 0:
                self.where = f"{frame.f_code.co_name}:{frame.f_lineno}"
                self.strike()
        return self._on_line

    def strike(self):
        """Raise, or do what else may happen between two lines."""
        raise Struck(self.where)


class PairStrike(LineStrike):
    """
    Raises `Struck` at one line event, and again where Python runs the handler of a second signal.

    That is at the entry of the functions that run next, and after the calls of C functions in them: `after` of these
    moments later. A tracing function that raises is not called any more, so the second strike needs a profiling one.
    """

    def __init__(self, functions, at, after):
        super().__init__(functions, at)
        self._codes = {code for code in self._codes if code.co_name != "__repr__"}  # called where it is displayed
        self._later = after

    def __enter__(self):
        super().__enter__()
        sys.setprofile(self._on_event)
        return self

    def __exit__(self, *_):
        sys.setprofile(None)
        super().__exit__()

    def _on_event(self, frame, event, argument):
        if (
            self.where
            and not self.second
            and event in ("call", "c_return")
            and frame.f_code in self._codes
            and not _is_before_release(frame)
        ):
            self._later -= 1
            if self._later < 0:
                self.second = f"{frame.f_code.co_name}:{frame.f_lineno} ({event})"
                raise Struck(self.second)


def _is_try(frame):
    return linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip() == "try:"


def _is_before_release(frame):
    for _ in range(3):
        if frame is None:
            return False
        if frame.f_lineno is not None and frame.f_lineno <= _release_begins(frame.f_code):
            return True
        frame = frame.f_back
    return False


@functools.cache
def _release_begins(code):
    """Return the line at which `release` of a lock begins, and 0 for any other function."""
    if code.co_name != "release":
        return 0
    last = max((line for _, _, line in code.co_lines() if line is not None), default=0)
    lines = range(code.co_firstlineno, last + 1)
    return next((at for at in lines if "with CleanupOnError(" in linecache.getline(code.co_filename, at)), 0)


@contextlib.contextmanager
def alarm(delay, error=Struck, *, unnoticed=False):
    """Have a signal handler raise in the main thread; `unnoticed`, it does not interrupt a wait that has begun."""

    def handler(number, frame):
        if armed:
            armed.clear()
            raise error

    def ring():
        time.sleep(delay)
        if armed:
            # Another thread's signal is noted for the main thread, which runs the handlers, but does not wake it up.
            signal.pthread_kill(threading.get_ident() if unnoticed else main, signal.SIGUSR1)

    main = threading.main_thread().ident or 0
    armed = [True]
    with handled(handler, signal.SIGUSR1):
        thread = BackgroundCall(ring)
        try:
            yield
        finally:
            armed.clear()
            thread.join()


def sweep(
    functions,
    work,
    check,
    stride,
    *,
    make=str,
    clean=lambda: None,
    least=40,
    second_stride=None,
):
    """
    Do some work with one key after the other, struck at one line further each time; check what each strike leaves.

    With `second_stride`, strike twice: for each first line, at one moment after the other from there on.

    The work gets what `make` makes of its key, which lives on, as one in a module's global does. After a failed check,
    `clean` makes room for the next one. Fails at the end if a check has, or if there were hardly any lines.
    """
    work(make("warm/up"))
    at, leaks = random.randrange(stride), []
    after = 0
    while True:
        key = f"sweep/{at}/{after}"
        thing = make(key)
        strike = LineStrike(functions, at) if second_stride is None else PairStrike(functions, at, after)
        with contextlib.suppress(Struck), strike:
            work(thing)
        if not strike.where:
            break
        gc.collect()
        try:
            check(key)
        except Exception as error:
            leaks.append((at, strike.where, strike.second, repr(error)))
            clean()
            gc.collect()
        if second_stride is not None and strike.second:
            after += second_stride
        else:
            at += stride
            after = 0 if second_stride is None else random.randrange(second_stride)
    assert at > least
    assert not leaks, f"{len(leaks)}: {leaks[0]}"


def work_linger(key):
    lock = zk_lock(key, linger=0.02)
    with lock:
        pass
    with lock:
        pass


def work_acquire_around_with(mutex):
    assert mutex.acquire()
    try:
        with mutex:
            pass
    finally:
        mutex.release()


def work_pass_on(key):
    lock = zk_lock(key, linger=0.02, timeout=10)
    waiters = []

    def wait():
        with lock as hold:
            hold.check()

    with contextlib.suppress(Struck), lock:
        waiters.append(BackgroundCall(wait))
        eventually(lambda: len(lingering_waiters(lock)) == 2)
    gc.collect()  # the traceback has the end of the block
    for waiter in waiters:
        waiter.result(30)


def strike_at_any_moment(lock, key, way, rounds):
    struck = 0
    for _ in range(rounds):
        entered = False
        try:
            with alarm(random.uniform(1e-5, 4e-3)):
                end = time.monotonic() + 5
                while time.monotonic() < end:
                    if way == "with":
                        with lock, lock:
                            pass
                    else:
                        entered = False
                        lock.acquire()
                        entered = True  # an exception between these two lines would be its caller's to deal with
                        lock.release()
        except Struck:
            struck += 1
        if entered and held_locks.find(current_owner(), key):
            lock.release()
        assert not blocks_of(lock)
    assert struck == rounds
