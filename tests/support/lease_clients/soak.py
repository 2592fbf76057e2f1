"""
Lock and release in many tasks, and write a history: ADDRESSES TOKEN NAME FIRST TASKS KEYS TERMS WAIT HOLD SECONDS.

TERMS, WAIT and HOLD are milliseconds. Each task has one of the keys and one of the terms.
"""

import asyncio
import itertools
import json
import logging
import random
import sys
import time

from zklock_client import AsyncZkLockClient, ZkLockError

LOOK = 0.1  # seconds
ADDRESSES, TOKEN, NAME, FIRST, TASKS, KEYS, TERMS, WAIT, HOLD, SECONDS = sys.argv[1:]
ops = itertools.count(1)


def note(kind, about, lease=None, **more):
    moment = time.monotonic()
    if lease is not None:
        more |= {"token": lease.token, "until": moment + lease.remaining}
    print(json.dumps({"t": moment, "p": NAME, "e": kind, **about, **more}), flush=True)
    return moment


async def lock(client, number):
    key, terms = f"k{(int(FIRST) + number) % int(KEYS)}", TERMS.split(",")
    term = int(terms[number % len(terms)]) / 1000
    about = {"o": f"{NAME}/{number}", "op": next(ops), "key": key, "term": term}
    is_granted = False
    note("invoke", about, timeout=None)
    try:
        async with client.lock(key, term=term, wait=float(WAIT) / 1000) as lease:
            is_granted = True
            moment = note("granted", about, lease)
            stop = moment + random.uniform(0, int(HOLD) / 1000)
            while moment < stop and lease.valid and not lease.release_requested:
                moment = note("valid", about, lease)
                await asyncio.sleep(LOOK)
            note("lost" if lease.lost else "release", about)
    except ZkLockError as error:
        if not is_granted:
            note("refused", about, why=f"{type(error).__name__}: {error}")
        await asyncio.sleep(LOOK)


async def run(number, stop):
    addresses = ADDRESSES.split(",")
    first = number % len(addresses)
    async with AsyncZkLockClient([*addresses[first:], *addresses[:first]], token=TOKEN or None) as client:
        while time.monotonic() < stop:
            await lock(client, number)


async def main():
    stop = time.monotonic() + float(SECONDS)
    await asyncio.gather(*(run(number, stop) for number in range(int(TASKS))))


logging.disable()  # losses are expected
asyncio.run(main())
