"""The errors of calls with wrong arguments, and of acquisitions that were not granted. They say what to do."""

from __future__ import annotations

import asyncio
import difflib
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, NoReturn, SupportsFloat, TypeAlias

from django_zklock import signals
from django_zklock.conf.arguments import LockArguments, LockedOptions
from django_zklock.core.execution.owner import Owner, running_loop
from django_zklock.core.locks.lingering import LocalWaiter
from django_zklock.core.protocol.contender import Busy, Contender, Outcome
from django_zklock.core.protocol.registry import Registry
from django_zklock.core.queue.nodes import Kind
from django_zklock.exceptions import LockBusy, LockNotAcquired, LockTimeout, ZkLockError, ZooKeeperUnavailable
from django_zklock.locks import notify

# --- wrong arguments ----------------------------------------------------------------------------------------------


def threading_timeout(blocking: bool, timeout: float, more: Mapping[str, object]) -> float | None:
    """Return the seconds to wait (None: no limit), from arguments of `threading.Lock.acquire`. Raises its errors."""
    if more:
        raise TypeError(f"acquire() has no argument {next(iter(more))!r}: the seconds to wait are given as timeout.")
    if not blocking:
        if timeout != -1:
            raise ValueError("can't specify a timeout for a non-blocking call")
        return 0.0
    if type(timeout) not in (int, float) and not isinstance(timeout, SupportsFloat):  # the second check is slow
        raise TypeError(f"timeout is a number of seconds here, or -1, to wait for ever; not {timeout!r}.")
    if timeout == -1:
        return None
    if timeout < 0:
        raise ValueError("timeout value must be a non-negative number")
    if timeout > threading.TIMEOUT_MAX:
        raise OverflowError("timeout value is too large")
    return float(timeout)


_FOREIGN_OPTIONS = {
    **dict.fromkeys(
        ("expire", "expires", "expiry", "ttl", "lease", "lock_timeout"),
        "a lock has no expiry: it is held until it is released or its process dies. To bound the time, use max_hold",
    ),
    **dict.fromkeys(
        ("blocking_timeout", "acquire_timeout", "wait", "wait_timeout", "max_wait"),
        "the seconds to wait for the lock are given as timeout",
    ),
    "blocking": "for a try without waiting, use timeout=0",
    "sleep": "waiters are woken by ZooKeeper, so there is nothing to set",
    "retry": 'for a Celery task, @zk_locked takes on_conflict="retry" and max_conflicts=3',
}
"""Names of options in other packages, and what to use here."""


def refuse_arguments(
    call: str, name: object, more: Sequence[object], options: Mapping[str, object], allowed: type
) -> NoReturn:
    """Raise `TypeError` for arguments that `call` does not have, and say what to write instead."""
    names = allowed.__annotations__
    if more:
        meant = f"timeout={more[0]!r}" if isinstance(more[0], (int, float, timedelta)) else "timeout=5"
        meant = meant if "timeout" in names else f"{next(iter(names))}=..."
        raise TypeError(f"{call}() takes one positional argument, the name of the lock; write the rest as {meant}.")
    option = next(option for option in options if option not in names)
    close = difflib.get_close_matches(option, names, n=1)
    is_field = isinstance(name, str) and f"{{{option}" in name
    if option in _FOREIGN_OPTIONS:
        hint = _FOREIGN_OPTIONS[option]
    elif option in ("kind", "limit"):
        hint = "use zk_lock(), zk_read(), zk_write() or zk_semaphore() for another kind of lock"
    elif not is_field and option != "fields" and option in LockArguments.__annotations__:
        hint = "it is an option of zk_lock()"
    elif not is_field and option in LockedOptions.__annotations__:
        hint = "it is an option of @zk_locked, for calls of the decorated function"
    elif not is_field and close:
        hint = f"did you mean {close[0]!r}?"
    elif "fields" not in names:
        hint = "the fields of the name are filled with the arguments of the decorated function"
    else:
        hint = f'a field of the name is passed as fields={{"{option}": ...}}'
    raise TypeError(f"{call}() has no option {option!r}: {hint.rstrip('.')}{'' if hint.endswith('?') else '.'}")


def check_text(name: str, value: object, what: str) -> None:
    """Raise `TypeError` if an argument is not a text."""
    if not isinstance(value, str):
        raise TypeError(f"{name} is {what}, not {value!r}.")


def check_seconds(name: str, value: object, what: str = "a number of seconds from 0") -> None:
    """Raise if an argument is not a number of seconds to wait."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} is {what}, not {value!r}.")
    if not 0 <= value < math.inf:
        raise ValueError(f"{name} is {what}, not {value!r}.")


def mapping(name: str, value: object) -> dict[Any, Any]:
    """Return a copy of an argument that must be a mapping, so that the caller cannot change it later."""
    if not isinstance(value, Mapping):
        raise TypeError(f'{name} is a dict such as {{"name": value}}, not {value!r}.')
    return dict(value)


def check_target(*, token: object, guid: object = "") -> None:
    """Raise if a token or guid has the wrong type. It would match no znode, so the hold would seem to be gone."""
    if not isinstance(token, int):
        raise TypeError(f"token is a number, as in ContenderInfo.token, not {token!r}.")
    check_text("guid", guid, "a text, as in ContenderInfo.guid")


def check_not_own_task(method: Callable[..., Any]) -> None:
    """Raise if the current task runs only `method`: the task would own the lock, and end at once."""
    task = asyncio.current_task(running_loop())
    code = getattr(method, "__code__", None)
    if task is not None and getattr(task.get_coro(), "cr_code", None) is code:
        raise ZkLockError(
            "aacquire() was made a task of its own, as asyncio.create_task() and gather() do, and asyncio.wait_for() "
            "before Python 3.12. That task would own the lock and end at once, so nothing could release it. Await it "
            "directly, with its own timeout or under asyncio.timeout()."
        )


# --- acquisitions that were not granted ---------------------------------------------------------------------------

AnyContender: TypeAlias = Contender | LocalWaiter


def refusal(contender: AnyContender, owner: Owner, outcome: Outcome | None, waited: float) -> Exception:
    """Return the error for an outcome that is no grant. None means that there was no outcome in time."""
    spec = contender.spec
    if isinstance(outcome, Exception):
        return outcome
    if isinstance(outcome, Busy) and outcome.waiters is not None:
        return LockBusy(
            f"{outcome.waiters} callers wait for the lock {spec.key!r} already; max_waiters is {spec.max_waiters}.",
            lock=spec.key,
        )
    if isinstance(outcome, Busy):
        if spec.kind is Kind.PERMIT and contender.operator is None:
            return LockBusy(f"No permit of {spec.key!r} is free{_ahead(contender, owner)}.", lock=spec.key)
        return LockBusy(f"The lock {spec.key!r} is held by {_holder(contender, owner)}.", lock=spec.key)
    if not (contender.waits and contender.placed):
        return ZooKeeperUnavailable(contender.session.explain(waited), lock=spec.key)
    ahead = _ahead(contender, owner)
    return LockTimeout(f"The lock {spec.key!r} was not free within {waited:.1f} s{ahead}.", lock=spec.key)


def report_failure(contender: AnyContender, error: BaseException, waited: float, *, waits: bool) -> None:
    """Send the signals of an acquisition that failed, after `waited` seconds."""
    if type(error) is LockNotAcquired:
        return  # `Leader.stop` has ended the wait
    spec, session, ahead = contender.spec, contender.session, contender.ahead
    if isinstance(error, LockNotAcquired):
        notify.send_from(
            session,
            signals.lock_contended,
            lock=spec.key,
            waited=waited if waits else 0.0,
            template=spec.template,
            kind=spec.kind.word,
        )
    notify.send_from(
        session,
        signals.lock_failed,
        lock=spec.key,
        error=type(error),  # not the error itself, which refers to the frames of the caller
        reason=str(error),
        waited=waited,
        template=spec.template,
        kind=spec.kind.word,
        about=contender.caller.about,
        ahead_about={} if ahead is None else ahead.about,
    )


def report_wait(contender: AnyContender, owner: Owner) -> None:
    """Send `lock_waiting`."""
    if notify.has_receivers(signals.lock_waiting):
        notify.send_from(
            contender.session,
            signals.lock_waiting,
            lock=contender.spec.key,
            ahead=_contender_ahead(contender, owner),
            about=contender.caller.about,
        )


def _holder(contender: AnyContender, owner: Owner) -> str:
    return str(contender.operator or _contender_ahead(contender, owner) or "another owner")


def _ahead(contender: AnyContender, owner: Owner) -> str:
    if contender.in_local_queue:
        return "; many other callers of this process wait for it, too"
    if contender.operator is not None:
        return f"; ahead is the hold of {contender.operator}"
    ahead = _contender_ahead(contender, owner)
    return f"; ahead is {ahead}" if ahead else ""


def _contender_ahead(contender: AnyContender, owner: Owner) -> str:
    """Return a description of the contender just ahead; empty if that is not known."""
    ahead, caller = contender.ahead, contender.caller
    if ahead is None:
        return ""
    # A message of Celery waits on behalf of a pool process, and a lease of the coordinator on behalf of a program.
    is_for_others = owner.kind == "message" or "lease" in caller.about
    if not is_for_others and (not ahead.guid or ahead.guid in contender.session.attached(Registry).guids):
        is_thread = ahead.thread != caller.thread or owner.kind == "thread"
        where = f"thread {ahead.thread}" if is_thread else f"another {owner.kind}"
        return f"{ahead.what!r} in {where} of this process"
    return f"{ahead.what!r} on {ahead.host}, process {ahead.pid}"
