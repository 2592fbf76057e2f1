"""The operator of a real site: looks at its first page, pastes commands into a shell, and presses buttons."""

from __future__ import annotations

import contextlib
import json
import re
import sqlite3
import subprocess
import sys
import threading
from collections import Counter
from html import unescape
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from django.utils.html import strip_tags

from django_zklock.report.background import UNKNOWN
from support.browser.pages import LIST
from support.browser.site import Site
from support.project import Project, environment
from support.zoo import eventually

LINES = 25  # the first lines of `status`, which name the cause and the remedy
CALM = "Nothing needs attention"
OPERATOR = "anna"  # the user of the shell
REASON = "it hangs"
NO_REASON = "--reason=''"  # a command with it is refused

# Each command is a line: a verb, and keys. Keys that differ only after the last slash share a template.
SCRIPT = """
import itertools, os, sys, threading, time
from django_zklock import zk_semaphore
from django_zklock.exceptions import StaleToken, ZkLockError

answer, ended = os.pipe()
wanted = threading.Event()

def lock(key, timeout=None):
    group, slash, name = key.rpartition("/")
    options = {"fields": {"name": name}, "timeout": timeout}
    if group in {"pool", "pair"}:  # of one permit, or of two
        return zk_semaphore(group + "/{name}", limit=1 + (group == "pair"), **options)
    return zk_lock(group + slash + "{name}", **options)

def say(*words):
    os.write(1, (" ".join(words) + "\\n").encode())

def hold(key, *inner):
    try:
        with lock(key):
            say("held", key)
            if inner:
                wanted.wait()
                hold(*inner)
            else:
                os.read(answer, 1)  # until the other side answers; no exception ends this call before
    except ZkLockError as error:
        say("lost", key, type(error).__name__)

def use(key, timeout=None):
    try:
        with lock(key, timeout):
            say("used", key)
    except ZkLockError as error:
        say("refused", key, type(error).__name__)

def write(key):
    try:
        with lock(key) as hold, hold.fenced(key):
            say("wrote", key)
    except StaleToken:
        say("stale", key)

def take(key):
    try:
        with lock(key):
            time.sleep(4)
        say("used", key)
    except ZkLockError as error:
        say("refused", key, type(error).__name__)

def serve(group):
    for number in itertools.count():
        with lock(f"{group}/{number}"):
            time.sleep(0.4)

for line in sys.stdin:
    verb, *keys = line.split()
    if verb == "use":  # one after the other
        for key in keys:
            use(key)
    elif verb == "write":  # one after the other
        for key in keys:
            write(key)
    elif verb == "try":  # a thread each, which waits for a moment only
        for key in keys:
            threading.Thread(target=use, args=[key, 1], daemon=True).start()
    elif verb == "skip":  # one after the other, without waiting
        for key in keys:
            use(key, 0)
    elif verb == "serve":  # a thread each, which uses one lock after the other
        for group in keys:
            threading.Thread(target=serve, args=[group], daemon=True).start()
    elif verb == "take":  # a thread each, which works for some seconds
        for key in keys:
            threading.Thread(target=take, args=[key], daemon=True).start()
    elif verb == "hold":  # a thread each, which hangs
        for key in keys:
            threading.Thread(target=hold, args=[key], daemon=True).start()
    elif verb == "wait":  # a thread each, which releases at once
        for key in keys:
            threading.Thread(target=use, args=[key], daemon=True).start()
    elif verb == "nest":  # one thread, which takes the next key after "want"
        threading.Thread(target=hold, args=keys, daemon=True).start()
    elif verb == "want":
        wanted.set()
    elif verb == "answer":
        os.close(ended)
"""


class Program:
    def __init__(self, process):
        self.process = process
        self._said = []
        self._logged = []
        streams = ((process.stdout, self._said), (process.stderr, self._logged))
        self._readers = [threading.Thread(target=self._read, args=pair, daemon=True) for pair in streams]
        for reader in self._readers:
            reader.start()

    def _read(self, stream, lines):
        for line in stream:
            lines.append(line.strip())

    def tell(self, verb, *keys):
        assert self.process.stdin is not None
        print(verb, *keys, file=self.process.stdin, flush=True)

    def hear(self, *lines):
        missing = Counter(lines)
        eventually(lambda: not missing - Counter(self._said), 60, (self._said, self._logged))
        for line in lines:
            self._said.remove(line)

    def hold(self, *keys):
        self.tell("hold", *keys)
        self.hear(*(f"held {key}" for key in keys))

    def end(self):
        """Have it exit in order."""
        self.process.stdin.close()
        self.process.wait()

    def kill(self):
        self.process.kill()
        for reader in self._readers:
            reader.join()
        with contextlib.suppress(BrokenPipeError):
            self.process.__exit__(None, None, None)  # waits for it, and closes the pipes


class Drill:
    def __init__(self, zoo, directory, hosts=None):
        directory.mkdir(exist_ok=True)
        self.zoo = zoo
        self.project = Project(directory)
        self.site = Site(directory, zoo.url(hosts))
        self._stack = contextlib.ExitStack()

    def __enter__(self):
        self._stack.enter_context(self.site)
        return self

    def __exit__(self, *error):
        self._stack.close()

    def keep(self, context):
        return self._stack.enter_context(context)

    @contextlib.contextmanager
    def reconfigured(self, **environment):
        """Have the site and its shell begin again with these variables for the length of a block."""
        before = dict(self.site.environment)
        try:
            self._restart(before | environment)
            yield
        finally:
            self._restart(before)

    def _restart(self, environment):
        self.site.__exit__()
        self.site.environment.clear()
        self.site.environment.update(environment)
        self.site.__enter__()

    def program(self, host, hosts=None):
        env = {**self.site.environment, "ZKLOCK_URL": self.zoo.url(hosts)}
        program = Program(self.zoo.spawn(SCRIPT, host=host, **env))
        self._stack.callback(program.kill)
        return program

    def wait_recorded(self, count):
        """Wait until the history has so many holds that have not ended: a process writes them about once a second."""
        query = "SELECT count(*) FROM zklock_events_event WHERE outcome = 'held'"
        with contextlib.closing(sqlite3.connect(self.project.directory / "site.sqlite3")) as database:
            eventually(lambda: database.execute(query).fetchone()[0] == count, 30)

    @contextlib.contextmanager
    def without_database(self):
        """Have each write of the history fail at once, as if its database was away."""
        for old, new in (("zklock_events_event", "away"), ("away", "zklock_events_event")):
            with contextlib.closing(sqlite3.connect(self.project.directory / "site.sqlite3", timeout=30)) as database:
                database.execute(f"ALTER TABLE {old} RENAME TO {new}")
            if new == "away":
                yield

    # --- the shell ----------------------------------------------------------------------------------------------

    def shell(self, command):
        path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
        env = {**environment(**self.site.environment), "PATH": path, "LOGNAME": OPERATOR}
        return subprocess.run(
            ["bash", "-c", command],
            cwd=self.project.directory,
            env=env,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )

    def status(self):
        done = self.shell("python manage.py zklock status")
        return done.stdout.splitlines() + done.stderr.splitlines(), done.returncode

    # --- the pages ----------------------------------------------------------------------------------------------

    @property
    def cookies(self):
        return {"Cookie": f"sessionid={self.site.sessions['operator']}"}

    def open(self, path=LIST, site=None):
        """Return a page, whatever its status, perhaps of another web process."""
        try:
            with urlopen(Request((site or self.site).url + path, headers=self.cookies), timeout=30) as answer:
                return str(answer.read().decode())
        except HTTPError as error:
            return error.read().decode()

    def places(self):
        """Return, for each place that programs read, the causes that it tells, and whether it is green."""
        scrape = json.loads(self.open("/scrape.json"))
        reports = {
            "incidents.json": json.loads(self.open("/incidents.json")),
            "status --json": json.loads(self.shell("python manage.py zklock status --json").stdout),
        }
        places = {
            name: (sorted({incident["cause"] for incident in report["incidents"]}), bool(report["healthy"]))
            for name, report in reports.items()
        }
        for name, causes in scrape.items():
            places[name] = (sorted({*causes} - {UNKNOWN}), not causes)
        return places

    def cards(self, site=None):
        """Return the texts of the cards on the first page."""
        sections = re.findall(r'<section class="module zklock-card.*?</section>', self.open(site=site), re.DOTALL)
        return [plain(html) for html in sections]

    # --- the drill ----------------------------------------------------------------------------------------------

    def is_calm(self, within=30.0):
        eventually(lambda: CALM in plain(self.open()), within, "it is not green")
        lines, status = self.status()
        assert (status, CALM in lines[0]) == (0, True), lines


def plain(html):
    return " ".join(unescape(strip_tags(html)).split())
