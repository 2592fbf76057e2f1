"""The proof: several hundred customers, killed workers, a stopped ZooKeeper. At the end the books must balance."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from datetime import datetime

from support.ensemble import Ensemble

from demo import books, trouble
from demo.load import Customers, Tally
from demo.queues import Queues
from demo.services import Site, say
from django_zklock import conf

SKUS = [f"item-{number:02}" for number in range(1, 25)]
MORNING, AFTERNOON = SKUS[:12], SKUS[12:]
OPENING, DELIVERED = 8, 2  # pieces of each item: at the opening, and while it is being sold
CUSTOMERS_PER_ITEM = 20
HTTP_AT_ONCE, TASKS_AT_ONCE = 24, 16
KILLS = 3
LEASE = 0.4  # of the session timeout
PHASE_LIMIT = 60.0  # seconds


class Proof:
    """Run the shop, inject faults, and check the books at the end."""

    def __init__(self, site: Site, ensemble: Ensemble | None, *, session: float, tick: float) -> None:
        self._site = site
        self._ensemble = ensemble
        self._session = session
        self._bound = session + 2 * tick  # seconds until a crashed holder is replaced
        self._outage = 1.5 * session
        self._tally = Tally()
        self._customers = Customers(site.port, self._tally)
        self._waits: list[float] = []
        self._held = 0
        self._left: list[str] = []
        self._problems: list[str] = []

    def run(self) -> list[str]:
        """Return what is wrong at the end: nothing, if the locks worked."""
        books.open_items(SKUS, OPENING)
        with ExitStack() as stack:
            queues = None
            if self._ensemble is not None:
                queues = stack.enter_context(Queues(self._ensemble.hosts, conf.current().base))
            self._sell(MORNING, "workers are killed", self._kill, queues)
            self._sell(AFTERNOON, "ZooKeeper is stopped", self._stop, queues)
            self._sell_the_rest()
            _until(lambda: books.receipts() >= self._aborts(), 10)
            if queues is not None:
                _until(lambda: not queues.left(), 15)
                self._left = queues.left()
        self._report()
        return self._problems

    def _sell(self, skus: list[str], event: str, make_trouble: Callable[[Queues], None], queues: Queues | None) -> None:
        """Send the customers of some items, and inject faults meanwhile."""
        crowd = skus * CUSTOMERS_PER_ITEM
        random.shuffle(crowd)
        over_http, by_task = crowd[::2], crowd[1::2]
        say(
            f"\n{len(crowd)} customers for {len(skus)} items of {OPENING + DELIVERED} pieces"
            + self._unless_unsafe(event)
        )
        with ThreadPoolExecutor(3) as pool:
            jobs = [
                pool.submit(self._customers.crowd, over_http, doors=("view", "async view"), at_once=HTTP_AT_ONCE),
                pool.submit(self._customers.crowd, by_task, doors=("task",), at_once=TASKS_AT_ONCE),
                pool.submit(self._deliver, skus),
            ]
            try:
                _until(lambda: books.orders(skus) >= 6, 20)
                try:
                    if queues is not None:
                        make_trouble(queues)
                except trouble.NoChance as problem:
                    self._problems.append(str(problem))
                self._wait(jobs, skus)
            except BaseException:
                self._customers.closed.set()  # or leaving the pool would wait for all of them
                raise

    def _wait(self, jobs: list[Future[None]], skus: list[str]) -> None:
        deadline = time.monotonic() + PHASE_LIMIT
        while wait(jobs, timeout=2.0).not_done:
            say(f"  {books.orders(skus)} orders")
            self._site.check()
            if time.monotonic() > deadline:
                self._customers.closed.set()
        for job in jobs:
            job.result()
        say(f"  {books.orders(skus)} orders, all customers served")

    def _deliver(self, skus: list[str]) -> None:
        with ThreadPoolExecutor(4) as pool:
            for done in [pool.submit(self._customers.deliver, sku, DELIVERED) for sku in skus]:
                done.result()

    def _sell_the_rest(self) -> None:
        """Sell what was delivered after the last customer."""
        for _ in range(OPENING + DELIVERED):
            rest = [shelf.sku for shelf in books.shelves() if shelf.stock > 0]
            self._customers.crowd(rest, doors=("view",), at_once=HTTP_AT_ONCE)

    def _kill(self, queues: Queues) -> None:
        killed: list[tuple[str, datetime]] = []
        for _ in range(KILLS):
            fresh = [sku for sku in MORNING if sku not in dict(killed)]
            killed.append(trouble.kill_a_holder(self._site, queues, fresh))
            say(f"  kill -9 of the worker process that held {killed[-1][0]}")
        for sku, when in killed:
            self._waits.append(trouble.wait_of_the_next(sku, when, within=4 * self._bound))
            say(f"  the next waiter for {sku} was at work {self._waits[-1]:.2f} s after the kill")

    def _stop(self, queues: Queues) -> None:
        assert self._ensemble is not None
        say(f"  ZooKeeper is stopped for {self._outage:g} s; a lease lasts {LEASE * self._session:g} s")
        self._held = trouble.stop_zookeeper(self._ensemble, queues, AFTERNOON, seconds=self._outage)
        say("  ZooKeeper serves again")

    def _aborts(self) -> int:
        """Count the aborts in the logs, and in the results of the tasks, independently of the receipts."""
        of_views = (" was aborted: ", " is not rolled back: ")
        of_tasks = "s: LockLost("  # they may run twice, so they are sent again
        return sum(map(self._site.count_in_logs, (*of_views, of_tasks))) + self._tally.count("aborted")

    def _unless_unsafe(self, event: str) -> str:
        return f", while {event}:" if self._ensemble is not None else ", and nobody makes trouble:"

    def _report(self) -> None:
        shelves = books.shelves()
        delivered, sold = sum(shelf.delivered for shelf in shelves), sum(shelf.sold for shelf in shelves)
        oversold = sum(max(0, shelf.sold - shelf.delivered) for shelf in shelves)
        count = self._tally.count
        rows = [
            ("answers to customers", f"{count('sold')} sold, {count('sold out')} sold out, {count('gave up')} gave up"),
            ("pieces sold", f"{sold} of {delivered}, {oversold} more than there were"),
            ("stock left", f"{sum(shelf.stock for shelf in shelves)}, lowest {min(shelf.stock for shelf in shelves)}"),
            ("books that do not balance", str(sum(not shelf.balances for shelf in shelves))),
        ]
        if self._ensemble is not None:
            rows += [
                ("conflicts", f"{count('conflict')} answers 409, {self._site.count_in_logs('] retry: ')} task retries"),
                ("answers 503 and 500", f"{count('unavailable')}, ZooKeeper away or the work aborted"),
                ("aborts", f"{self._aborts()} of purchases and deliveries, {books.receipts()} receipts"),
                ("locks held at the stop", str(self._held)),
                ("longest wait after a kill", f"{max(self._waits, default=0):.2f} s (bound: {self._bound:g} s)"),
                ("znodes left", str(len(self._left))),
            ]
        say("")
        for name, value in rows:
            say(f"  {name:27}{value}")
        self._judge(shelves, sold, delivered, oversold)

    def _judge(self, shelves: list[books.Shelf], sold: int, delivered: int, oversold: int) -> None:
        wrong = {
            f"{oversold} pieces were sold that were not there": oversold,
            f"{sold} were sold of {delivered}": sold != delivered,
            "a stock is negative": any(shelf.stock < 0 for shelf in shelves),
            "the stock of an item is not what its orders left": not all(shelf.balances for shelf in shelves),
            "some customers gave up": self._tally.count("gave up"),
            f"unexpected answers: {self._tally.unexpected()}": self._tally.unexpected(),
        }
        if self._ensemble is not None:
            wrong |= {
                f"{self._aborts()} aborts left {books.receipts()} receipts": self._aborts() != books.receipts(),
                "nothing was aborted when ZooKeeper stopped": not self._aborts(),
                f"somebody waited {max(self._waits, default=0):.1f} s after a kill": max(self._waits, default=0)
                > self._bound + 2,
                f"znodes are left: {', '.join(self._left[:5])}": self._left,
            }
        self._problems += [text for text, is_wrong in wrong.items() if is_wrong]


def _until(condition: Callable[[], bool], seconds: float) -> None:
    """Wait for a condition, with a limit in seconds."""
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.1)
