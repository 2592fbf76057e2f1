"""Some traffic to watch: a few customers, and deliveries when something is sold out."""

from __future__ import annotations

import random
import threading
import time

from django.contrib.auth.models import User
from shop.models import Item

from demo import books
from demo.load import DOORS, Answer, Customers, Tally
from demo.services import Site, say

SKUS = ("chair", "desk", "kettle", "lamp", "mug", "rug")
CUSTOMERS = 6


class Traffic:
    """Customers, each in its own thread, until `stop` is called."""

    def __init__(self, site: Site) -> None:
        self._customers = Customers(site.port, Tally(tell=self._tell))

    def start(self) -> None:
        """Start the first customers."""
        if not User.objects.filter(username="demo").exists():
            User.objects.create_superuser("demo", password="demo")
        if not Item.objects.exists():
            books.open_items(SKUS, 5)
        for work in [self._restock, *[self._buy] * CUSTOMERS]:
            threading.Thread(target=work, daemon=True).start()

    def stop(self) -> None:
        """Start no more customers, and print nothing about those that are still running."""
        self._customers.closed.set()

    def _buy(self) -> None:
        while not self._customers.closed.wait(random.uniform(0.5, 3.0)):
            # Two items that everybody wants, so that there is something to wait for.
            self._customers.buy(random.choice((*SKUS[:2] * 4, *SKUS)), random.choice(DOORS))

    def _restock(self) -> None:
        while not self._customers.closed.wait(2.0):
            for sku in Item.objects.filter(stock=0).values_list("sku", flat=True):
                self._customers.deliver(sku, 5)

    def _tell(self, answer: Answer) -> None:
        if not self._customers.closed.is_set():
            now = time.strftime("%H:%M:%S")
            say(f"{now}  {answer.door:10}  {answer.sku:7} {answer.result:12} {answer.seconds:6.2f} s")
