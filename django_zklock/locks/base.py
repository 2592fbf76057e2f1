"""
How locks are acquired and released: one lock, or several as one.

Threads and coroutines differ only in how they wait. So the code that waits is a `Routine`. A thread runs it by `run`,
with a waiter that blocks the thread. A coroutine awaits it.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Coroutine, Sequence
from threading import get_ident
from typing import TYPE_CHECKING, Any, Generic, Literal, NoReturn, TypeVar, overload

from django.core.exceptions import SynchronousOnlyOperation

from django_zklock.conf.arguments import UNSET, FunctionPolicy, Seconds, Unset
from django_zklock.core.execution import abort
from django_zklock.core.execution.abort import CleanupOnError, finalizers_of
from django_zklock.core.execution.owner import current_owner
from django_zklock.core.execution.waiters import Awaited, Routine, TaskWaiter, ThreadWaiter, run
from django_zklock.core.locks.acquisition import Acquisition, OpenBlocks
from django_zklock.core.locks.held import HeldLock, Use, held_locks, released
from django_zklock.core.locks.spec import LockSpec
from django_zklock.core.log import Logger
from django_zklock.core.zk import process
from django_zklock.exceptions import LockDeadlock, LockNotAcquired, LockNotHeld, ZkLockError
from django_zklock.locks.arguments import (
    check_no_running_loop,
    check_not_own_task,
    refuse_pool_call,
    threading_timeout,
)
from django_zklock.locks.queue_reader import is_used
from django_zklock.locks.release import Ending, Releasable, finish_release

logger = Logger("django_zklock.locks")

AnyHold = TypeVar("AnyHold", covariant=True)
if TYPE_CHECKING:
    from typing_extensions import TypeVar as TypeVarWithDefault

    BlockPolicy = TypeVarWithDefault("BlockPolicy", bound=FunctionPolicy, default=Literal["raise"], covariant=True)
    GivenPolicy = TypeVarWithDefault("GivenPolicy", bound=FunctionPolicy, default=Literal["raise"])
else:
    BlockPolicy = GivenPolicy = TypeVar("BlockPolicy", bound=FunctionPolicy)


class BlockExit:
    """
    The descriptor of an `__exit__` that is a new object for each block, as `finalizers_of` needs it.

    `with` looks `__exit__` up before it calls `__enter__`. An `ExitStack` gets one that ends the innermost block.
    """

    def __init__(self, new_end: Callable[[Any], Any], close_innermost: Callable[..., None]) -> None:
        self._new_end = new_end
        self._close_innermost = close_innermost

    def __get__(self, lock: object | None, cls: type) -> Any:
        if lock is None:  # `ExitStack` looks it up on the class
            return self._close_innermost
        if sys.version_info >= (3, 15) and sys._getframe(1).f_globals.get("__name__") == "inspect":  # the same
            return functools.partial(self._close_innermost, lock)
        return self._new_end(lock)


class LockBase(Releasable, Generic[AnyHold, BlockPolicy]):
    """The base of one lock and of several locks. Their policy decides whether a block may get None, not the hold."""

    _skips = False
    """Whether a block runs without the locks, and gets None, if they are not acquired in time."""
    _lasts = ""
    """How others see a hold that is meant to last: "leader", "run" or "lease". Its end waits for the confirmation."""
    _on_wait: Callable[[Any], None] | None = None
    """Called with the waiter of each wait, before the wait begins."""

    def __init__(self) -> None:
        self._blocks: OpenBlocks = {}
        self._looked_up_exits: dict[int, Acquisition] = {}  # by thread: of the last one, before its block begins
        self._looked_up_async_exits: dict[int, list[Acquisition]] = {}  # the same; filled by the block

    @property
    def specs(self) -> tuple[LockSpec, ...]:
        """
        Return the specs of the locks that a call acquires, in the order of their keys. Raises `InvalidLockName`.

        All have the same `timeout`, which is for all together. The transaction begins inside the last one.
        """
        raise NotImplementedError

    def _view(self, acquisition: Acquisition) -> AnyHold:
        """Return the holds of an acquisition as the caller sees them."""
        raise NotImplementedError

    def __bool__(self) -> NoReturn:
        raise TypeError('"if" locks nothing. Use "with zk_lock(...):", "if lock.acquire(timeout=0):" or "is not None".')

    def __reduce__(self) -> NoReturn:
        raise TypeError("A lock cannot be pickled or copied. Pass its name, and call zk_lock(name) there.")

    # --- as threading.Lock and RLock ------------------------------------------------------------------------------

    def acquire(self, blocking: bool = True, timeout: Seconds | Unset = UNSET) -> AnyHold | None:
        """
        Acquire, as `threading.RLock.acquire` does; return the hold, or None if it was not acquired in time.

        It returns None also to the owner of a lock that is not reentrant, at once.
        `timeout` is in seconds, -1 waits without limit. If it is left out, the option `timeout` of the lock counts; a
        lock without that option is waited for without limit. Several locks are all acquired, or none. No work is
        aborted when a lock that was acquired this way is lost: call `hold.check()`, or use `with`. Raises
        `ZooKeeperUnavailable` when ZooKeeper does not answer, and `LockDeadlock`.

        A lock must not outlive a call that a thread pool runs, as `sync_to_async` does: use `aacquire` in coroutines.
        """
        check_no_running_loop("acquire", '"async with" or await lock.aacquire()')
        refuse_pool_call(sys._getframe().f_back)
        acquisition = Acquisition(use=Use(self, kept=True))
        with CleanupOnError(acquisition.release):
            return run(self._acquire(acquisition, ThreadWaiter, threading_timeout(blocking, timeout)))

    async def aacquire(self, blocking: bool = True, timeout: Seconds | Unset = UNSET) -> AnyHold | None:
        """
        Acquire as `acquire` does; waiting costs no thread.

        The calling task becomes the owner. So do not make this call a task of its own: it would own the lock and end.
        """
        check_not_own_task(self.aacquire)
        acquisition = Acquisition(use=Use(self, kept=True))
        with CleanupOnError(acquisition.release):
            return await Awaited(self._acquire(acquisition, TaskWaiter, threading_timeout(blocking, timeout)))

    def _acquire(
        self, acquisition: Acquisition, new_waiter: type[Any], timeout: float | Unset | None
    ) -> Routine[AnyHold | None]:
        specs = self.specs
        if isinstance(timeout, Unset):
            timeout = specs[-1].timeout if specs[-1].has_timeout else None
        _refuse_atomic(specs[-1], is_async=new_waiter is not ThreadWaiter)
        acquisition.use.until_commit = all(spec.release_on == "commit" for spec in specs)
        try:
            yield from acquisition.acquire(specs, timeout, new_waiter, self._on_wait)
        except LockDeadlock:
            raise  # it is no matter of time
        except LockNotAcquired:
            return None
        for hold in acquisition.holds:
            hold.grant.begun = True
        return self._view(acquisition)

    @abort.shielded
    def _uses_to_release(self) -> list[Ending]:
        uses: list[Ending] = []
        specs = self.specs
        for spec in specs:
            held = _held_lock(spec)
            use = None if held is None else held.last_use(spec.kind)
            if held is None or use is None:  # without a use, a transaction keeps the lock, or others have acquired it
                held, use = held_locks.of_ended_owner(self, spec.key)
            uses.append((held, use, None if specs[-1].atomic else spec.release_on))
        return uses

    def locked(self) -> bool:
        """
        Return whether anybody holds the lock, or one of several, or waits for it. Raises `ZooKeeperUnavailable`.

        An operator hold or minimum hold that is over by ZooKeeper's clock is ignored. This call may delete it.
        """
        check_no_running_loop("locked", "await lock.alocked()")
        return run(self._locked(ThreadWaiter))

    async def alocked(self) -> bool:
        """Return what `locked` returns."""
        return await Awaited(self._locked(TaskWaiter))

    def _locked(self, new_waiter: type[Any]) -> Routine[bool]:
        for spec in self.specs:
            held = _held_lock(spec)
            if held is not None and not held.lost:
                return True
            if (yield from is_used(process.current(), spec.key, spec.parent, new_waiter())):
                return True
        return False

    def owned(self) -> bool:
        """Return whether the calling owner (asyncio task, greenlet or thread) holds the lock, or all of several."""
        return all(
            (held := _held_lock(spec)) is not None and bool(held.uses_of(spec.kind)) and not held.lost
            for spec in self.specs
        )

    # --- with and async with --------------------------------------------------------------------------------------

    @overload
    def __enter__(self: LockBase[AnyHold, Literal["raise"]]) -> AnyHold: ...
    @overload
    def __enter__(self) -> AnyHold | None: ...
    def __enter__(self) -> Any:
        check_no_running_loop("acquire", '"async with" or await lock.aacquire()')
        acquisition = self._looked_up_exits.pop(get_ident(), None)
        if acquisition is None:
            refuse_pool_call(sys._getframe().f_back)
            return run(self._open_without_finalizers(ThreadWaiter))
        return run(self._open(acquisition, ThreadWaiter))

    @overload
    async def __aenter__(self: LockBase[AnyHold, Literal["raise"]]) -> AnyHold: ...
    @overload
    async def __aenter__(self) -> AnyHold | None: ...
    def __aenter__(self) -> Any:
        return Awaited(self._open_without_finalizers(TaskWaiter, self._looked_up_async_exits.pop(get_ident(), None)))

    def _open_without_finalizers(
        self, new_waiter: type[Any], opened: list[Acquisition] | None = None
    ) -> Routine[AnyHold | None]:
        """Open a block in a coroutine or an `ExitStack`, whose end has no finalizers. Add the block to `opened`."""
        acquisition = Acquisition(use=Use(self))
        if opened is not None:
            opened.append(acquisition)
        with CleanupOnError(acquisition.release):
            return (yield from self._open(acquisition, new_waiter))

    def _open(self, acquisition: Acquisition, new_waiter: type[Any]) -> Routine[AnyHold | None]:
        try:
            specs = self.specs
            if new_waiter is not ThreadWaiter:
                _refuse_atomic(specs[-1], is_async=True)
            try:
                yield from acquisition.acquire(specs, specs[-1].timeout, new_waiter, self._on_wait)
            except LockNotAcquired:
                if not self._skips:
                    raise
                acquisition.specs = ()  # the block has no locks: its end finds it as any other, and releases nothing
            acquisition.open_block(self._blocks)
            return self._view(acquisition) if acquisition.specs else None
        except BaseException as error:
            run(self._finish(error, acquisition.end_block(error)[0], [], new_waiter))
            raise

    def _new_end(self) -> Callable[..., None]:
        """Return the `__exit__` of one block. If an exception destroys it, the locks of the block are released."""
        acquisition = Acquisition(use=Use(self))
        end = functools.partial(self._close, acquisition)
        acquisition.finalizers = finalizers_of(end, functools.partial(self._on_destroyed, acquisition))
        self._looked_up_exits[get_ident()] = acquisition
        return end

    @abort.shielded
    def _close(self, acquisition: Acquisition, kind: object, error: BaseException | None, traceback: object) -> None:
        """End the block of this acquisition. `error` is the exception that has ended its body, or None."""
        if acquisition.block is None:  # code has called `__exit__` by itself, without `with`
            self._close_innermost(kind, error, traceback)
            return
        failed, ended = acquisition.end_block(error)
        try:
            if ended or failed is not error:
                run(self._finish(error, failed, ended, ThreadWaiter))
        finally:
            del failed, error  # else they and this frame would refer to each other

    @abort.shielded
    def _close_innermost(self, kind: object, error: BaseException | None, traceback: object) -> None:
        """End the innermost block of the caller. `error` is the exception that has ended its body, or None."""
        run(self._finish(error, *self._end_innermost(error), ThreadWaiter))

    def _finish(
        self,
        error: BaseException | None,
        failed: BaseException | None,
        ended: list[HeldLock],
        new_waiter: type[Any],
    ) -> Routine[None]:
        """Wait for the releases. Then raise `failed` if it replaces `error`, which has ended the block."""
        try:
            if ended:
                yield from released(ended, new_waiter, confirmed=bool(self._lasts))
            if failed is None or failed is error:
                return
            if error is not None and isinstance(failed, ZkLockError):
                raise failed from error
            raise failed
        finally:
            del failed, error

    def _new_async_end(self) -> Callable[..., Coroutine[Any, Any, None]]:
        """Return the `__aexit__` of one block."""
        opened = self._looked_up_async_exits[get_ident()] = []
        return functools.partial(self._aclose, opened)

    async def _aclose(
        self, opened: list[Acquisition], kind: object, error: BaseException | None, traceback: object
    ) -> None:
        """End the block of this acquisition, or the innermost one of the caller."""
        failed, ended = self._end_innermost(error, opened)
        try:
            if kind is GeneratorExit:  # a coroutine that Python closes cannot wait
                run(self._finish(error, failed, [], TaskWaiter))
            elif ended or failed is not error:
                await Awaited(self._finish(error, failed, ended, TaskWaiter))
        finally:
            del failed, error

    if TYPE_CHECKING:

        def __exit__(self, *error: Any) -> None: ...

        async def __aexit__(self, *error: Any) -> None: ...

    else:
        __exit__ = BlockExit(_new_end, _close_innermost)
        __aexit__ = BlockExit(_new_async_end, lambda lock, *error: lock._aclose([], *error))

    @abort.shielded
    def _end_innermost(
        self, error: BaseException | None, opened: Sequence[Acquisition] = ()
    ) -> tuple[BaseException | None, list[HeldLock]]:
        """End the block that was `opened`, or the caller's innermost one. Return what `end_block` returns."""
        innermost = list(opened)
        with CleanupOnError(functools.partial(finish_release, innermost, self._innermost, _release_block)):
            innermost += [] if opened else self._innermost()
            return innermost[0].end_block(error)

    def _innermost(self) -> list[Acquisition]:
        """Return the acquisition of the caller's innermost block, in a list. Raises `LockNotHeld`."""
        acquisitions = self._blocks.get(current_owner().subject)
        if not acquisitions:
            # Python closes a generator that it drops, and an event loop its coroutines, perhaps in another thread.
            blocks = list(self._blocks.values())
            over = [opened for opened in blocks if len(blocks) == 1 or any(block.owner.is_over for block in opened)]
            acquisitions = over[-1] if over else None
        if not acquisitions:
            raise LockNotHeld(
                "The caller is in no block of this lock. Another task, greenlet or thread has opened it, and must end "
                "it, or __aenter__() was not awaited."
            )
        return acquisitions[-1:]

    @abort.shielded
    def _on_destroyed(self, acquisition: Acquisition, end: object) -> None:
        """Release the locks of a block, because an exception has destroyed its end."""
        if acquisition.finalizers is None:
            return
        if self._looked_up_exits.get(get_ident()) is acquisition:
            del self._looked_up_exits[get_ident()]  # no block was entered
        destroyed = tuple(acquisition.holds) if acquisition.block is not None else ()
        acquisition.release()
        acquisition.finalizers = None
        for held in destroyed:
            logger.warning(
                "an exception destroyed the end of a block under lock %r, which is released now",
                held.key,
                about=held.grant.about,
                extra=held.grant.log_fields(),
            )


def _held_lock(spec: LockSpec) -> HeldLock | None:
    """Return what the caller holds of this lock."""
    return held_locks.find(current_owner(), spec.key)


@abort.shielded
def _release_block(acquisitions: list[Acquisition]) -> None:
    for acquisition in acquisitions:
        acquisition.release()


def _refuse_atomic(spec: LockSpec, *, is_async: bool) -> None:
    """Raise if the lock has the option atomic: neither `acquire()` nor async code can have the transaction."""
    if spec.atomic:
        raise (SynchronousOnlyOperation if is_async else ZkLockError)(
            f"The lock {spec.key!r} has the option atomic, but a transaction needs a sync block, at whose end it is "
            'committed: use "with", in a coroutine inside a sync function that you call by sync_to_async. Or give '
            "atomic=False."
        )
