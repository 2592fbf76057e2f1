"""Customers: they buy over HTTP or by a task, retry after a conflict or an abort, and stop when an item is sold out."""

from __future__ import annotations

import http.client
import itertools
import json
import random
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from celery.exceptions import TimeoutError as NoResult
from shop.tasks import process_order, restock

DOORS = ("view", "async view", "task")
FINAL = ("sold", "sold out", "delivered")
GAVE_UP = "gave up"


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of one attempt of a customer, and its duration in seconds."""

    door: str
    sku: str
    result: str
    seconds: float


@dataclass(slots=True)
class Tally:
    """All answers so far. Thread-safe."""

    tell: Callable[[Answer], None] | None = None
    _counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    _mutex: threading.Lock = field(default_factory=threading.Lock)

    def add(self, answer: Answer) -> None:
        with self._mutex:
            self._counts[answer.door, answer.result] += 1
        if self.tell is not None:
            self.tell(answer)

    def count(self, result: str, *doors: str) -> int:
        """Count the answers of one kind, for the named views or for all."""
        with self._mutex:
            return sum(n for (door, what), n in self._counts.items() if what == result and (not doors or door in doors))

    def unexpected(self) -> dict[str, int]:
        """Return the answers that no customer should get."""
        known = {*FINAL, GAVE_UP, "conflict", "aborted", "unavailable"}
        with self._mutex:
            return {f"{door}: {what}": n for (door, what), n in self._counts.items() if what not in known}


class Customers:
    """Send customers to the shop and count their answers."""

    def __init__(self, port: int, tally: Tally, *, timeout: float = 60.0) -> None:
        self.tally = tally
        self.closed = threading.Event()  # set: those who are not served yet give up
        self._port = port
        self._timeout = timeout
        self._csrf = self._fetch_csrf_token()

    def crowd(self, skus: Iterable[str], *, doors: Iterable[str], at_once: int) -> None:
        """Send one customer for each of `skus`, `at_once` at a time; return when all are served."""
        with ThreadPoolExecutor(at_once) as pool:
            for done in [pool.submit(self.buy, sku, door) for sku, door in zip(skus, itertools.cycle(doors))]:
                done.result()

    def buy(self, sku: str, door: str) -> None:
        """Act as one customer: repeat the request until the answer is final."""
        ref = uuid.uuid4().hex
        once = self._order if door == "task" else self._post
        self._insist(lambda: once(sku, door, ref), sku, door)

    def deliver(self, sku: str, amount: int) -> None:
        """Send a delivery by a task; repeat it until it succeeds."""
        ref = uuid.uuid4().hex
        self._insist(lambda: self._result(restock.delay(sku, amount, ref)), sku, "delivery")

    def _insist(self, ask: Callable[[], str], sku: str, door: str) -> None:
        deadline = time.monotonic() + self._timeout
        while time.monotonic() < deadline and not self.closed.is_set():
            began = time.monotonic()
            result = ask()
            self.tally.add(Answer(door, sku, result, time.monotonic() - began))
            if result in FINAL:
                return
            time.sleep(random.uniform(0.1, 0.3))
        self.tally.add(Answer(door, sku, GAVE_UP, self._timeout))

    def _post(self, sku: str, door: str, ref: str) -> str:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        headers = {
            "Accept": "application/json",
            "Content-Type": "application/x-www-form-urlencoded",
            "Cookie": f"csrftoken={self._csrf}",
            "X-CSRFToken": self._csrf,
            "Connection": "close",
        }
        try:
            connection.request("POST", f"/items/{sku}/{'buy' if door == 'view' else 'abuy'}/", f"ref={ref}", headers)
            response = connection.getresponse()
            body = response.read()
        except (OSError, http.client.HTTPException) as error:
            return f"no answer ({type(error).__name__})"
        finally:
            connection.close()
        if response.status in (200, 410):
            return str(json.loads(body)["result"])
        if response.status == 500 and b"lock_not_rolled_back" in body:
            return "unavailable"  # the purchase has a `ref`, so the customer may ask again
        return {409: "conflict", 503: "unavailable"}.get(response.status, f"status {response.status}")

    def _order(self, sku: str, door: str, ref: str) -> str:
        return self._result(process_order.delay(sku, 1, ref))

    def _result(self, task: Any) -> str:
        try:
            result = task.get(timeout=self._timeout, interval=0.1, propagate=False)
        except NoResult:
            return "no answer (task)"
        if not isinstance(result, BaseException):
            return result if isinstance(result, str) else "delivered"
        known = {
            "LockLost": "aborted",
            "ZooKeeperUnavailable": "unavailable",
            "LockTimeout": "conflict",
            "StaleToken": "conflict",
        }
        return known.get(type(result).__name__, f"error {result!r}")

    def _fetch_csrf_token(self) -> str:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=30)
        connection.request("GET", "/", headers={"Connection": "close"})
        cookie = connection.getresponse().headers["Set-Cookie"] or ""
        connection.close()
        return cookie.partition("csrftoken=")[2].partition(";")[0]
