"""Real ZooKeeper servers on loopback, from the jars on this machine. Nothing of locks, Django or kazoo is imported."""

import atexit
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

from django_zklock.core import clock
from support import debian

MAIN_CLASS = "org.apache.zookeeper.server.quorum.QuorumPeerMain"

#: The jars that Debian's ZooKeeper 3.8 needs as a server, alone or in a quorum.
DEBIAN_JARS = ("zookeeper", "zookeeper-jute", "slf4j-api", "slf4j-simple", "metrics-core", "snappy-java")
DEBIAN_DIRECTORY = Path("/usr/share/java")
#: Debian's jars and a Java without windows; its package `zookeeper` would bring a service and a desktop's libraries.
PACKAGES = ("libzookeeper-java", "default-jre-headless")
HOMEBREW_DIRECTORIES = (
    Path("/opt/homebrew/opt/zookeeper/libexec"),
    Path("/usr/local/opt/zookeeper/libexec"),
    Path("/home/linuxbrew/.linuxbrew/opt/zookeeper/libexec"),
)

#: Small and quick to start: these servers store a few kilobytes and often run for seconds.
JVM_OPTIONS = ("-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")

#: ZooKeeper's releases log through logback, which would write every DEBUG line by default.
LOGBACK = """\
<configuration>
  <appender name="OUT" class="ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%d{ISO8601} %-5p [%t] %c{1} - %m%n</pattern></encoder>
  </appender>
  <root level="INFO"><appender-ref ref="OUT"/></root>
</configuration>
"""


_starter = ThreadPoolExecutor(1)
"""Linux kills a tied process when the *thread* that started it ends. This thread lives as long as the process."""


class ZooKeeperNotFound(debian.NotInstalled):
    """No ZooKeeper server, or no Java to run it, was found on this machine."""


class ServerFailed(RuntimeError):
    """A server ended, or did not start in time. The message ends with the last lines of its log."""


def find_classpath():
    """Find jars: those of `$ZOOKEEPER_HOME` and no others, if it is set, else Debian's, else Homebrew's."""
    home = os.environ.get("ZOOKEEPER_HOME")
    if home:
        jars = _jars_of_release(Path(home))
        if not jars:
            raise ZooKeeperNotFound(f"zookeeper*.jar in {home!r} or its lib/, which ZOOKEEPER_HOME names")
        return jars
    jars = [DEBIAN_DIRECTORY / f"{name}.jar" for name in DEBIAN_JARS]
    if all(jar.exists() for jar in jars):
        return jars
    for directory in HOMEBREW_DIRECTORIES:
        jars = _jars_of_release(directory)
        if jars:
            return jars
    raise ZooKeeperNotFound("ZooKeeper", *PACKAGES)


def _jars_of_release(home):
    jars = sorted([*home.glob("lib/*.jar"), *home.glob("*.jar")])
    return jars if any(jar.name.startswith("zookeeper") for jar in jars) else []


def find_java():
    """Find the `java` command: `$JAVA_HOME` if it has one, else the PATH. Raises ZooKeeperNotFound."""
    home = os.environ.get("JAVA_HOME")
    if home and (Path(home) / "bin" / "java").exists():
        return str(Path(home) / "bin" / "java")
    java = shutil.which("java")
    if java is None:
        raise ZooKeeperNotFound("Java", PACKAGES[1])
    return java


def find_zookeeper():
    find_classpath()
    find_java()


def four_letter(host, port, word, timeout=2.0):
    """Send a four-letter command to a server; return its answer. `timeout` covers each step. Raises OSError."""
    with socket.create_connection((host, port), timeout=timeout) as connection:
        connection.sendall(word.encode("ascii"))
        answer = bytearray()
        while chunk := connection.recv(65536):
            answer += chunk
    return answer.decode("utf-8", "replace")


_given = deque(maxlen=500)  # the last ones of this process


def free_ports(count):
    """
    Return free TCP ports of loopback, below the range of outgoing connections.

    Binding to port 0 would return a port of that range. Another connection can take it while its server is down, and a
    client that tries to reconnect may even connect to itself. The ports come from the system's random numbers, because
    tests often seed `random`, and two runs with one seed would choose the same ports. Each process of a run has ports
    of its own: another one could take a port before its server has started. So could a later call, which gets others.
    """
    process = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 16
    lowest_outgoing = 32768
    with suppress(OSError, ValueError):
        lowest_outgoing = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    ceiling = lowest_outgoing if lowest_outgoing > 12000 else 65536
    with ExitStack() as sockets:
        ports = []
        for _ in range(1000):
            if len(ports) == count:
                _given.extend(ports)
                return ports
            port = 10000 + 16 * secrets.randbelow((ceiling - 10000) // 16) + process
            if port in _given:
                continue
            candidate = socket.socket()
            try:
                candidate.bind(("127.0.0.1", port))
            except OSError:
                candidate.close()
                continue
            sockets.enter_context(candidate)  # stays open until all are chosen, so that none is chosen twice
            ports.append(port)
    raise OSError(f"found only {len(ports)} of {count} free ports on 127.0.0.1")


class Server:
    """A process that can be stopped, killed, paused and started again; it keeps its port and its data."""

    def __init__(self, *, number, port, directory, command, env):
        self.number = number  # its `myid`, from 1
        self.port = port
        self.directory = directory
        self.log = directory / "server.log"
        self._command = command
        self._env = env
        self._process = None

    def __repr__(self):
        return f"<Server {self.number} {self.address} {f'pid {self.pid}' if self.running else 'not running'}>"

    @property
    def address(self):
        return f"127.0.0.1:{self.port}"

    @property
    def running(self):
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self):
        """The process id. Raises ServerFailed if the server is not running."""
        if self._process is None or self._process.poll() is not None:
            raise ServerFailed(f"server {self.number} ({self.address}) is not running")
        return self._process.pid

    def start(self):
        """Start the process without waiting until it is ready. Do nothing if it is running."""
        if self.running:
            return
        with self.log.open("ab") as log:
            how = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log, "start_new_session": True}
            popen = subprocess.Popen
            command = [*debian.tied("KILL"), *self._command]
            self._process = _starter.submit(popen, command, cwd=self.directory, env=self._env, **how).result()

    def stop(self, timeout=5.0):
        """End the process with SIGTERM, and with SIGKILL if it still runs after `timeout` seconds."""
        self.terminate()
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout)
            self.kill()

    def terminate(self):
        if self._process is not None:
            self._process.terminate()
            self._process.send_signal(signal.SIGCONT)  # a paused process receives SIGTERM only when it is resumed

    def kill(self):
        """End the process with SIGKILL, as a crash would, and wait until it is gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def pause(self):
        """Pause the process (SIGSTOP). Connections stay open; nothing is answered."""
        pid = self.pid
        os.kill(pid, signal.SIGSTOP)
        if sys.platform == "linux":
            # The signal takes effect a little later. WNOWAIT leaves the exit status to Popen, should the process end.
            os.waitid(os.P_PID, pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self):
        os.kill(self.pid, signal.SIGCONT)

    def mode(self):
        """Return 'leader', 'follower' or 'standalone'; None while the server does not answer or is not ready."""
        with suppress(OSError):
            for line in four_letter("127.0.0.1", self.port, "srvr", timeout=1.0).splitlines():
                if line.startswith("Mode: "):
                    return line.removeprefix("Mode: ").strip()
        return None

    def wait_ready(self, timeout=30.0):
        """Wait until the server accepts clients, which needs a quorum, and return its mode. Raises ServerFailed."""
        deadline = clock.now() + timeout
        while True:
            mode = self.mode()
            if mode is not None:
                return mode
            if not self.running:
                raise ServerFailed(f"server {self.number} ({self.address}) is not running{self._tail()}")
            if clock.now() > deadline:
                raise ServerFailed(
                    f"server {self.number} ({self.address}) was not ready within {timeout:g} s{self._tail()}"
                )
            time.sleep(0.02)

    def _tail(self):
        with suppress(OSError):
            return "\n" + "\n".join(self.log.read_text(errors="replace").splitlines()[-25:])
        return ""


class Ensemble:
    """
    One ZooKeeper server, or three, on free loopback ports, for the length of a with block.

    `tick` is ZooKeeper's tickTime in seconds. Session timeouts are between 2 and 20 ticks unless `min_session_timeout`
    and `max_session_timeout` (seconds) are given. `container_check` is how often, in seconds, empty container znodes
    are deleted. With `fsync=False`, writes are acknowledged before they are on disk, which is faster. `properties` are
    more lines for zoo.cfg, `java_options` more options of the JVM, and `env` more environment variables.

    Without `directory`, data and logs are in a temporary directory that `stop()` removes, and a second `start()` starts
    an empty ensemble on the same ports. A server that is stopped and started alone keeps its data either way.

    The servers end with this process: at its exit, and on Linux also when it is killed.
    """

    def __init__(
        self,
        nodes=1,
        *,
        tick=0.5,
        directory=None,
        container_check=1.0,
        min_session_timeout=None,
        max_session_timeout=None,
        fsync=False,
        properties=None,
        java_options=(),
        env=None,
    ):
        if nodes < 1 or nodes == 2:
            raise ValueError(f"an ensemble has 1 server, or 3 or more, not {nodes}")
        self.servers = []
        self._directory = Path(directory) if directory is not None else None
        self._temporary = None  # set while running, if no directory was given
        ports = free_ports(3 * nodes)
        self._ports = ports[:nodes]
        self._quorum = list(zip(ports[nodes::2], ports[nodes + 1 :: 2], strict=True)) if nodes > 1 else []
        self._config = {
            "tickTime": f"{tick * 1000:.0f}",
            "initLimit": "40",  # ticks; three JVMs start slowly on a small machine
            "syncLimit": "5",
            "clientPortAddress": "127.0.0.1",
            "maxClientCnxns": "0",
            "admin.enableServer": "false",
            "4lw.commands.whitelist": "*",
            "snapshot.trust.empty": "true",
            **({"minSessionTimeout": f"{min_session_timeout * 1000:.0f}"} if min_session_timeout is not None else {}),
            **({"maxSessionTimeout": f"{max_session_timeout * 1000:.0f}"} if max_session_timeout is not None else {}),
            **{
                f"server.{number}": f"127.0.0.1:{peer}:{election}"
                for number, (peer, election) in enumerate(self._quorum, start=1)
            },
            **(properties or {}),
        }
        self._java_options = [
            *JVM_OPTIONS,
            f"-Dznode.container.checkIntervalMs={container_check * 1000:.0f}",
            f"-Dzookeeper.forceSync={'yes' if fsync else 'no'}",
            "-Dzookeeper.nio.numWorkerThreads=0",  # the threads that wait for requests answer them: fewer switches
            "-Dlogback.configurationFile=logback.xml",
            "-Dorg.slf4j.simpleLogger.showDateTime=true",
            "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
            *java_options,
        ]
        self._env = {**os.environ, **(env or {})}
        self._owner = os.getpid()

    @property
    def hosts(self):
        """The servers as a connection string: `127.0.0.1:2181,127.0.0.1:2182`."""
        return ",".join(f"127.0.0.1:{port}" for port in self._ports)

    @property
    def leader(self):
        """The current leader. Raises ServerFailed if there is none."""
        for server in self.servers:
            if server.mode() in ("leader", "standalone"):
                return server
        raise ServerFailed(f"no server of {self.hosts} is the leader")

    @property
    def followers(self):
        return [server for server in self.servers if server.mode() == "follower"]

    def url(self, chroot=""):
        return f"zk://{self.hosts}{'/' + chroot.strip('/') if chroot else ''}"

    def start(self, timeout=60.0):
        """Start all servers, and wait until each is ready. If that fails, none is left running."""
        if self.servers:
            return
        java, classpath = find_java(), find_classpath()
        directory = self._directory
        if directory is None:
            directory = self._temporary = Path(tempfile.mkdtemp(prefix="zklock-ensemble-"))
        atexit.register(self.stop)
        deadline = clock.now() + timeout
        try:
            for number, port in enumerate(self._ports, start=1):
                self.servers.append(self._prepare(number, port, directory.resolve(), java, classpath))
            for server in self.servers:
                server.start()
            for server in self.servers:
                server.wait_ready(max(0.0, deadline - clock.now()))
        except BaseException:
            self.stop()
            raise

    def stop(self):
        if os.getpid() != self._owner:  # a forked child runs the exit handlers, too, but its parent owns the servers
            return
        atexit.unregister(self.stop)
        for server in self.servers:
            server.terminate()  # all at once, so that the rest does not elect a leader first
        for server in self.servers:
            server.stop()
        self.servers = []
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)
            self._temporary = None

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *error):
        self.stop()

    def _prepare(self, number, port, root, java, classpath):
        directory = root / f"server-{number}"
        data = directory / "data"
        data.mkdir(parents=True, exist_ok=True)
        (data / "myid").write_text(f"{number}\n")
        config = {**self._config, "clientPort": str(port), "dataDir": str(data)}
        (directory / "zoo.cfg").write_text("".join(f"{key}={value}\n" for key, value in config.items()))
        (directory / "logback.xml").write_text(LOGBACK)
        command = [java, *self._java_options, "-cp", os.pathsep.join(map(str, classpath)), MAIN_CLASS, "zoo.cfg"]
        return Server(number=number, port=port, directory=directory, command=command, env=self._env)
