"""A process with a thread for each kind of lock, and users who send tasks: `python -m support.versions.actor SLOT`."""

import asyncio
import contextlib
import itertools
import random
import signal
import sys
import threading
import time

import django

from django_zklock import zk_leader, zk_lock, zk_locks, zk_read, zk_semaphore, zk_write
from django_zklock.exceptions import LockLost
from support.versions import keys
from support.versions.record import Stay, note, ready
from support.versions.shop import TASKS, book

PAUSE = 0.02, 0.2  # seconds, the least and the most, between two turns
TERM = 0.5, 2.0  # seconds of a leader

#: The tasks that users send, each with its keys and a weight.
SENT = {
    "wait": (keys.WORK, 6),
    "retry": (keys.WORK, 3),
    "skip": ((keys.SKIP,), 2),
    "slow": (keys.SLOW, 3),
    "until_done": (keys.UNIQUE, 3),
    "until_start": (keys.UNIQUE, 3),
}

ended = threading.Event()
candidates = []
failures = []
chance = random.Random()


def work():
    stay = Stay(chance.choice(keys.WORK))
    with stay.around(), zk_lock("{key}", fields={"key": stay.key}) as hold, stay.inside(hold):
        stay.increment(hold)


def use(key, lock, seconds, **wish):
    stay = Stay(key, **wish)
    with stay.around(), lock as hold, stay.inside(hold):
        time.sleep(seconds)


def operated():
    use(keys.OPERATED, zk_lock(keys.OPERATED), 0.01)


def read_write():
    kind = chance.choice(("read", "read", "read", "write"))
    use(keys.READ_WRITE, (zk_write if kind == "write" else zk_read)(keys.READ_WRITE), 0.05, kind=kind)


def permit():
    use(
        keys.SEMAPHORE, zk_semaphore(keys.SEMAPHORE, limit=keys.PERMITS), 0.1, kind="semaphore", limit=keys.MOST_PERMITS
    )


def linger():
    use(keys.LINGER, zk_lock(keys.LINGER, linger=0.05), 0.005, linger=0.05)


def several():
    pair = chance.sample(keys.SETS, 2)
    stays = {key: Stay(key) for key in pair}
    with contextlib.ExitStack() as stack:
        for stay in stays.values():
            stack.enter_context(stay.around())
        with zk_locks(*pair) as holds, contextlib.ExitStack() as inside:
            for hold in holds:
                inside.enter_context(stays[hold.key].inside(hold))
            time.sleep(0.01)


async def in_coroutine():
    stay = Stay(keys.OPERATED)
    with stay.around():
        async with zk_lock(keys.OPERATED) as hold:
            with stay.inside(hold):
                await asyncio.sleep(0.01)


def lead():
    stay = Stay(keys.LEADER)

    def consume(hold):
        with stay.inside(hold):
            ended.wait(chance.uniform(*TERM))

    candidate = zk_leader(keys.LEADER)
    candidates.append(candidate)
    if ended.is_set():  # the handler may not have seen this one
        candidate.stop()
    with stay.around():
        candidate.run(consume)
    candidates.remove(candidate)


def send():
    """Send a task; note which one does the work, as that of an earlier call may."""
    kind = chance.choices(list(SENT), [weight for _, weight in SENT.values()])[0]
    note("sent", kind=kind, ref=TASKS[kind].delay(chance.choice(SENT[kind][0])).id)
    ended.wait(0.3)  # the workers keep up with so many


def pay():
    """Have a worker check the signed token of a lock, which has a second for that."""
    stay = Stay(chance.choice(keys.PAY))
    with stay.around(), zk_lock("{key}", fields={"key": stay.key}) as hold, stay.inside(hold):
        stay.increment(hold)
        note("sent", kind="book", ref=book.delay(stay.key, hold.signed_token()).id)
        ended.wait(1.0)


def keep(slot):
    with zk_lock(f"kept/{slot}") as hold:
        note("kept", key=hold.key, token=hold.token)
        request = None
        while request is None and not ended.is_set():
            request = hold.wait_release_requested(0.2)
        note("asked" if request else "left", key=hold.key, token=hold.token, reason=request and request.reason)


def suffer(slot):
    token = 0
    try:
        with zk_lock(f"broken/{slot}") as hold:
            token = hold.token
            note("kept", key=hold.key, token=token)
            while not ended.is_set():
                hold.wait_lost(0.2)
        note("left", key=hold.key, token=token)
    except LockLost as error:
        note("broken", token=token, reason=str(error))


def end(*about):
    ended.set()
    for candidate in candidates:
        candidate.stop(grace=5)


def main(slot):
    django.setup()
    signal.signal(signal.SIGTERM, end)
    # Twice: two owners of one process meet.
    turns = [work, work, operated, read_write, read_write, permit, permit, linger, linger]
    turns += [several, several, lead, send, pay, lambda: asyncio.run(in_coroutine())]
    turns += [lambda: keep(slot), lambda: suffer(slot)]
    threads = [threading.Thread(target=repeat, args=[turn]) for turn in turns]
    for thread in threads:
        thread.start()
    ready()
    for thread in threads:
        thread.join()
    sys.exit(1 if failures else 0)


def repeat(turn):
    for _ in itertools.count():
        if ended.wait(chance.uniform(*PAUSE)):
            return
        try:
            turn()
        except BaseException as error:
            failures.append(error)
            raise


if __name__ == "__main__":
    main(sys.argv[1])
