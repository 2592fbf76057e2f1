"""Apache Curator, as Debian ships it, in a Java process that tests drive. The compiler came with ZooKeeper: no JDK."""

import atexit
import functools
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from support import debian
from support.ensemble import find_java
from support.neighbours.protocol import OtherClient

PACKAGE = "libcurator-recipes-java"
JARS = Path("/usr/share/java")
NEEDED = (
    *(f"curator-{part}" for part in ("recipes", "framework", "client")),
    *("guava", "slf4j-api", "slf4j-nop", "zookeeper", "zookeeper-jute"),
    *(f"netty-{part}" for part in ("handler", "transport", "buffer", "common", "codec", "resolver")),
)
COMPILERS = ("eclipse-jdt-core-compiler-batch", "eclipse-jdt-core")  # a jar of its own, from Debian 13 on
SOURCES = sorted(Path(__file__).parent.glob("*.java"))


def find_curator():
    """Return the jars of Curator, and of what it needs; the last one is the compiler. Raises `NotInstalled`."""
    jars = [JARS / f"{name}.jar" for name in NEEDED]
    compilers = [jar for name in COMPILERS if (jar := JARS / f"{name}.jar").exists()]
    if not all(jar.exists() for jar in jars) or not compilers:
        raise debian.NotInstalled("Apache Curator", PACKAGE, "libzookeeper-java")
    return [*jars, compilers[0]]


@functools.cache
def _classes():
    *jars, compiler = find_curator()
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


def curator(hosts, session_timeout=10.0):
    """Return a process with one client of Curator's, which is started as a context; paths are from the root on."""
    path = os.pathsep.join(map(str, [_classes(), *find_curator()[:-1]]))
    return OtherClient([find_java(), *_SMALL, "-cp", path, "Neighbour", hosts, str(round(session_timeout * 1000))])
