"""The tutorial: its files and commands, from an empty directory, and what the page says they print."""

import http.cookiejar
import os
import re
import signal
import subprocess
import sys
import urllib.parse
import urllib.request
from contextlib import suppress
from pathlib import Path

import pytest
from support.docs import DOCS, shell
from support.ensemble import free_ports
from support.project import environment
from support.zoo import eventually

BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"# (\S+)\n(.*)", re.DOTALL)

INSTALLED = ("mkdir tutorial", "cd tutorial", "python3 -m venv ", "source venv/", "pip install ")
"""How these commands begin is not run: the tests have a directory and an environment with these packages."""

DEVSERVER = "python manage.py zklock devserver"
PROGRAMS = (DEVSERVER, "python manage.py runserver", "celery -A shop worker")
"""How the commands begin that run until they are stopped, each in a terminal of its own."""

ENVIRONMENT = environment(
    PATH=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
    PYTHONUNBUFFERED="1",
    PYTEST_ADDOPTS="-p no:randomly -p no:asyncio -p no:xdist",
)

VARIES = (
    (r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "<id of a task>"),
    (r"0x[0-9a-f]+", "<session>"),
    (r"127\.0\.0\.1:\d+", "<address>"),
    (r"(\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d(,\d+)?", "<time>"),
    (r"\d+\.\d+(?= s\b|s$)", "<seconds>"),
)
"""Patterns of text that varies from run to run, and a word for each."""

LIST = "/admin/zklock/lock/"
ANY_LINES, ANY_TEXT = r"(?:.*\n)*?", r".*"


def alike(text):
    for pattern, word in VARIES:
        text = re.sub(pattern, word, text, flags=re.MULTILINE)
    return text


def patterns_of(shown):
    """Return a pattern for each line: `...` on the page stands for any lines, and within a line for any text."""
    return [
        ANY_LINES if line == "..." else ANY_TEXT.join(map(re.escape, line.split("..."))) + r"\n"
        for line in alike(shown).splitlines()
    ]


class Terminal:
    def __init__(self, command, directory, log):
        self._log = log
        self._seen = 0  # characters of the output
        words = ["bash", "-c", f"exec {command}"]
        with log.open("wb") as out:
            self._process = subprocess.Popen(
                words, cwd=directory, env=ENVIRONMENT, stdout=out, stderr=out, start_new_session=True
            )

    def has_printed(self, shown):
        """Return whether these lines were printed after the last ones that this has found; others may be between."""
        pattern = "^" + ANY_LINES.join(patterns_of(shown))
        match = re.compile(pattern, re.MULTILINE).search(alike(self._log.read_text()), self._seen)
        if match is not None:
            self._seen = match.end()
        return match is not None

    def stop(self):
        self._process.send_signal(signal.SIGINT)
        return self._process.wait(30)

    def kill(self):
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


class Reader:
    def __init__(self, directory, logs):
        self._terminals = {}
        self._web, zookeeper = free_ports(2)
        self._directory = directory
        self._logs = logs
        # The same page, with ports of this test. The web server need not look for changes of its files.
        self._changes = {"2181": str(zookeeper), "8000": str(self._web), "runserver ": "runserver --noreload "}

    def follow(self, section):
        for kind, text in BLOCK.findall(section):
            {"console": self._run, "text": self._look}.get(kind, self._append)(text)

    def _changed(self, text):
        return re.sub("|".join(self._changes), lambda match: self._changes[match[0]], text)

    def _append(self, text):
        named = FILE.fullmatch(text)
        assert named is not None, f"this block does not name its file:\n{text}"
        with (self._directory / named[1]).open("a") as file:
            file.write(self._changed(named[2]))

    def _run(self, text):
        """Run the commands of a block, and compare what they print. The last one may run until it is stopped."""
        lines = text.splitlines(keepends=True)
        commands = [line[2:].strip() for line in lines if line.startswith("$ ")]
        shown = "".join(line for line in lines if not line.startswith("$ "))
        commands = [self._changed(command) for command in commands if not command.startswith(INSTALLED)]
        program = commands.pop() if commands and commands[-1].startswith(PROGRAMS) else None
        done = shell("-e", "-c", "\n".join(commands), directory=self._directory, env=ENVIRONMENT)
        assert done.returncode == 0, text + done.stdout + done.stderr
        if program is None:
            assert re.fullmatch("".join(patterns_of(shown)), alike(done.stdout)), text + done.stdout + done.stderr
            return
        log = self._logs / str(len(list(self._logs.iterdir())))
        self._terminals[program] = terminal = Terminal(program, self._directory, log)
        eventually(lambda: terminal.has_printed(shown), 60, text)

    def _look(self, text):
        """Wait until one of the programs has printed this. Ctrl-C stops the dev server."""
        if text.startswith("^C"):
            text = text.removeprefix("^C")
            (terminal,) = [self._terminals[command] for command in self._terminals if command.startswith(DEVSERVER)]
            assert terminal.stop() == 0
        eventually(lambda: any(terminal.has_printed(text) for terminal in self._terminals.values()), 60, text)

    def see_waiter(self):
        address = f"http://127.0.0.1:{self._web}"
        browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar()))

        def read(path, form=None):
            with browser.open(address + path, form, timeout=60) as page:
                return str(page.read().decode())

        (csrf,) = re.findall(r'name="csrfmiddlewaretoken" value="([^"]+)"', read("/admin/login/"))
        form = {"username": "admin", "password": "secret", "csrfmiddlewaretoken": csrf, "next": f"{LIST}?q="}
        assert "inventory/lamp" in read("/admin/login/", urllib.parse.urlencode(form).encode())
        eventually(lambda: '"waiting": 1' in read(f"{LIST}data.json"), 30, "the admin shows no waiter")

    def close(self):
        for terminal in self._terminals.values():
            terminal.kill()


@pytest.fixture
def reader(tmp_path):
    for folder in (directory := tmp_path / "tutorial", logs := tmp_path / "logs"):
        folder.mkdir()
    reader = Reader(directory, logs)
    try:
        yield reader
    finally:
        reader.close()
        for log in sorted(logs.iterdir()):
            print(f"--- {log.name}\n{log.read_text()}")


@pytest.mark.chaos  # kombu's file transport loses a message if a worker takes its file before it is written
def test_the_tutorial_works_as_written(reader):
    sections = (DOCS / "tutorial.md").read_text().split("\n## ")
    assert len(sections) == 10
    for section in sections:
        reader.follow(section)
        if section.startswith("5. "):
            reader.see_waiter()
