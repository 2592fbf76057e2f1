"""A small site of locked views, served by several processes, and the sessions of each of them."""

from __future__ import annotations

import contextlib
import re
import subprocess
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from support.ensemble import four_letter, free_ports
from support.project import SETTINGS, Project
from support.zoo import Zoo, eventually

if TYPE_CHECKING:
    from typing_extensions import Self

VIEWS = """
import os
from django.http import HttpResponse
from django.urls import path
from django_zklock import zk_locked


@zk_locked("stock/{sku}", timeout=10)
def sell(request, sku):
    return HttpResponse(str(os.getpid()))


urlpatterns = [path("sell/<str:sku>/", sell)]
"""

PREFORK = '''
"""A preforking server: the master loads the application; its workers serve a few requests each, and are replaced."""
import os
import sys
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

os.environ["DJANGO_SETTINGS_MODULE"] = "project_settings"
from django.core.wsgi import get_wsgi_application
from django.urls import get_resolver

host, port, count, requests = sys.argv[1], *map(int, sys.argv[2:])
server = WSGIServer((host, port), WSGIRequestHandler)
server.set_app(get_wsgi_application())
get_resolver().url_patterns  # with the views
workers = set()
while True:
    while len(workers) < count:
        pid = os.fork()
        if not pid:
            for _ in range(requests):
                server.handle_request()
            sys.exit(0)
        workers.add(pid)
    workers.discard(os.wait()[0])
'''


class Website:
    """
    A site in a directory, served for the length of a with block.

    `serve` is the command, for Python, that gets the address: `["manage.py", "runserver", "{host}:{port}"]`.
    """

    def __init__(self, directory: Path, zoo: Zoo, *serve: str, session_timeout: float) -> None:
        self.views = directory / "site_views.py"
        self._project = Project(directory)
        self._project.write("project_settings.py", SETTINGS + "ROOT_URLCONF = 'site_views'\n")
        self._project.write(self.views.name, VIEWS)
        self._project.write("prefork.py", PREFORK)
        (self._port,) = free_ports(1)
        self._serve = [word.format(host="127.0.0.1", port=self._port) for word in serve]
        self._env = {"DEBUG": "1", "ZKLOCK_URL": zoo.url(session_timeout=session_timeout)}
        self._zookeeper = int(zoo.hosts.rpartition(":")[2])
        self._process: subprocess.Popen[str] | None = None

    @property
    def process(self) -> subprocess.Popen[str]:
        assert self._process is not None
        return self._process

    def __enter__(self) -> Self:
        self._process = self._project.start(*self._serve, **self._env)
        try:
            eventually(self.is_served, 20, "the site is not served")
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def is_served(self) -> bool:
        """
        Tell whether a page is served.

        A connection alone says less: the socket of a process that is already taken for dead is closed by the last of
        its threads, and what it had accepted until then is reset.
        """
        assert self.process.poll() is None, "the server ended"
        try:
            self.sell()
        except OSError:  # URLError is one
            return False
        return True

    def __exit__(self, *about: object) -> None:
        # The master first: it would put others into their places.
        ending = [psutil.Process(self.process.pid), *self._children()] if self.process.poll() is None else []
        for process in ending:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        print(*self.process.communicate(), sep="\n")

    # --- what a visitor does ------------------------------------------------------------------------------------

    def sell(self, sku: str = "a") -> int:
        """Ask for a page; return the process that made it."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/sell/{sku}/", timeout=20) as answer:
            return int(answer.read())

    def sell_many(self, count: int) -> set[int]:
        """Ask for pages, several at a time, and some under one lock; return the processes that made them."""
        with ThreadPoolExecutor(4) as visitors:
            return set(visitors.map(self.sell, [str(number % 3) for number in range(count)]))

    # --- what runs ----------------------------------------------------------------------------------------------

    def _children(self) -> list[psutil.Process]:
        return list(psutil.Process(self.process.pid).children(recursive=True))

    def workers(self) -> set[int]:
        """The processes below the one that was started."""
        return {child.pid for child in self._children() if child.status() != psutil.STATUS_ZOMBIE}

    def sessions(self) -> dict[int, list[str]]:
        """The sessions of each process of the site, as ZooKeeper has them; those without any included."""
        lines = four_letter("127.0.0.1", self._zookeeper, "cons")
        known = {int(port): session for port, session in re.findall(r":(\d+)\[.*,sid=0x([0-9a-f]+)", lines)}
        found: dict[int, list[str]] = {}
        for pid in {self.process.pid} | self.workers():
            with contextlib.suppress(psutil.NoSuchProcess):
                sockets = psutil.Process(pid).net_connections("tcp")
                ports = [each.laddr.port for each in sockets if each.raddr and each.raddr.port == self._zookeeper]
                found[pid] = [known[port] for port in ports if port in known]
        return found

    def knows(self, session: str) -> bool:
        """Tell whether ZooKeeper still has a session, connected or not."""
        return session in four_letter("127.0.0.1", self._zookeeper, "dump")
