"""
Hold a lock until a line is read, or the lock is lost: ADDRESSES KEY TERM_MS WAIT_MS, which may be Infinity.

The same client waits for the lock ALSO, if it is given.
"""

import asyncio
import contextlib
import sys

from zklock_client import AsyncZkLockClient, ZkLockError


async def watch(lease):
    while not lease.release_requested:
        await asyncio.sleep(0.05)
    print("wanted", lease.release_requested, flush=True)


async def wait_for(client, key):
    async with client.lock(key):
        print("also held", flush=True)


async def main(addresses, key, term, wait, *also):
    ended = asyncio.Event()
    asyncio.get_running_loop().add_reader(sys.stdin, ended.set)
    async with AsyncZkLockClient(addresses.split(","), client_id="holder") as client:
        waiting = [asyncio.create_task(wait_for(client, key)) for key in also]
        try:
            async with client.lock(
                key, term=int(term) / 1000, wait=float(wait) / 1000, on_lost=lambda lease: ended.set()
            ) as lease:
                print("held", lease.token, flush=True)
                watching = asyncio.create_task(watch(lease))
                await ended.wait()
                watching.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await watching
            print("released", flush=True)
            await asyncio.gather(*waiting)
        except ZkLockError as error:
            print(f"{type(error).__name__}: {error}", flush=True)


asyncio.run(main(*sys.argv[1:]))
