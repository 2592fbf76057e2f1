"""
Apache Curator, as Debian ships it, in a Java process that tests drive.

`python -m support.neighbours.curator` installs Debian's package where that is allowed. It is small, as what it needs
came with ZooKeeper; so did the compiler, Eclipse's, which Debian's ZooKeeper depends on by way of Jetty. So no JDK is
needed.
"""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from support import debian
from support.ensemble import find_java
from support.neighbours.protocol import Neighbour

PACKAGE = "libcurator-recipes-java"
JARS = Path("/usr/share/java")
NEEDED = (
    *(f"curator-{part}" for part in ("recipes", "framework", "client")),
    *("guava", "slf4j-api", "slf4j-nop", "zookeeper", "zookeeper-jute"),
    *(f"netty-{part}" for part in ("handler", "transport", "buffer", "common", "codec", "resolver")),
)
COMPILER = "eclipse-jdt-core"
SOURCES = sorted(Path(__file__).parent.glob("*.java"))


class CuratorNotFound(RuntimeError):
    """Curator is not on this machine. The message says what to install."""


def find_jars() -> list[Path]:
    """Return the jars of Curator, and of what it needs; the last one is the compiler. Raises `CuratorNotFound`."""
    jars = [JARS / f"{name}.jar" for name in (*NEEDED, COMPILER)]
    missing = [jar.name for jar in jars if not jar.exists()]
    if missing:
        raise CuratorNotFound(
            f"There is no {', '.join(missing)} in {JARS}, and locks are tested with those of Apache Curator. Install "
            f"it with `apt-get install {PACKAGE} libzookeeper-java` (Debian, Ubuntu)."
        )
    return jars


@functools.cache
def _classes() -> Path:
    """Compile the program, once in the life of this process; return the directory of its classes."""
    *jars, compiler = find_jars()
    directory = Path(tempfile.mkdtemp(prefix="zklock-curator-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    main = "org.eclipse.jdt.internal.compiler.batch.Main"
    options = ["-17", "-proc:none", "-nowarn", "-d", str(directory), "-cp", os.pathsep.join(map(str, jars))]
    command = [find_java(), *_SMALL, "-cp", str(compiler), main, *options, *map(str, SOURCES)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise AssertionError(f"Curator's neighbour does not compile:\n{done.stdout}{done.stderr}")
    return directory


_SMALL = ["-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", "-Dfile.encoding=UTF-8"]


def curator(hosts: str, session_timeout: float = 4.0) -> Neighbour:
    """Return a process with one client of Curator's, which is started as a context; paths are from the root on."""
    path = os.pathsep.join(map(str, [_classes(), *find_jars()[:-1]]))
    return Neighbour([find_java(), *_SMALL, "-cp", path, "Neighbour", hosts, str(round(session_timeout * 1000))])


def ensure() -> None:
    """Make sure that Curator is here; install Debian's package where that is allowed."""
    try:
        find_jars()
    except CuratorNotFound as problem:
        if not debian.may_install():
            raise SystemExit(str(problem)) from None
        debian.install(PACKAGE)
        find_jars()


if __name__ == "__main__":
    ensure()
    print(f"Curator: {find_jars()[0].resolve()}")
