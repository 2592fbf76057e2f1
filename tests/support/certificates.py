"""Certificate authorities and certificates for tests, made by openssl; and what a server needs to speak TLS."""

import contextlib
import shutil
import subprocess
from datetime import datetime, timedelta, timezone

import pytest

from support.ensemble import DEBIAN_DIRECTORY, Ensemble, free_ports
from support.zoo import Zoo

# The jars that the server needs for TLS in addition to its own; Debian ships them as dependencies of ZooKeeper.
NETTY = [f"netty-{part}" for part in ("buffer", "codec", "common", "handler", "resolver", "transport")]
NETTY_JARS = [DEBIAN_DIRECTORY / f"{name}.jar" for name in (*NETTY, "netty-transport-native-unix-common")]
WITH_NETTY = "-Xbootclasspath/a:" + ":".join(map(str, NETTY_JARS))

DAYS = "90"
NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1")
"""The options of openssl for a key that takes no time to make."""


def skip_without_tls():
    if not all(jar.exists() for jar in NETTY_JARS) or shutil.which("openssl") is None:
        pytest.skip("needs Debian's netty jars and openssl")


def openssl(*arguments):
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)


def certificate(folder, name, authority):
    key, request, signed, more = (folder / f"{name}.{end}" for end in ("key", "csr", "pem", "ext"))
    more.write_text("subjectAltName=DNS:localhost\n")
    openssl("req", *NEW_KEY, "-nodes", "-keyout", str(key), "-out", str(request), "-subj", f"/CN={name}")
    signer = ("-CA", str(folder / f"{authority}.pem"), "-CAkey", str(folder / f"{authority}.key"), "-CAcreateserial")
    openssl("x509", "-req", "-in", str(request), *signer, "-out", str(signed), "-days", DAYS, "-extfile", str(more))
    return key.read_bytes(), signed.read_bytes()


def expired(folder, name, authority):
    """Make a certificate NAME.pem that has been over for a day, and its key."""
    key, request, signed, more = (folder / f"{name}.{end}" for end in ("key", "csr", "pem", "ext"))
    more.write_text("subjectAltName=DNS:localhost\n")
    openssl("req", *NEW_KEY, "-nodes", "-keyout", str(key), "-out", str(request), "-subj", f"/CN={name}")
    (folder / "index.txt").write_text("")
    (folder / "serial").write_text("1000\n")
    database = f"database={folder}/index.txt\nserial={folder}/serial\nnew_certs_dir={folder}\n"
    policy = "default_md=sha256\npolicy=policy\n[policy]\ncommonName=supplied\n"
    (folder / "ca.cnf").write_text(f"[ca]\ndefault_ca=default\n[default]\n{database}{policy}")
    now = datetime.now(timezone.utc)
    start, end = ((now + timedelta(days=days)).strftime("%Y%m%d%H%M%SZ") for days in (-2, -1))
    signer = ("-cert", str(folder / f"{authority}.pem"), "-keyfile", str(folder / f"{authority}.key"))
    times = ("-startdate", start, "-enddate", end, "-notext", "-extfile", str(more))
    openssl(
        "ca", "-batch", "-config", str(folder / "ca.cnf"), *signer, "-in", str(request), "-out", str(signed), *times
    )


def authority(folder, name):
    key, own = folder / f"{name}.key", folder / f"{name}.pem"
    made = ("-keyout", str(key), "-out", str(own), "-subj", f"/CN={name}")
    # Python 3.13 and newer refuse an authority that does not say what its key is for.
    use = ("-addext", "keyUsage=critical,keyCertSign,cRLSign")
    openssl("req", "-x509", *NEW_KEY, "-nodes", "-days", DAYS, *use, *made)
    return own.read_bytes()


def make_pki(directory):
    """Make an authority, and one certificate of it for the server and the client alike; return settings of TLS."""
    directory.mkdir()
    authority(directory, "ca")
    (directory / "both.pem").write_bytes(b"".join(certificate(directory, "localhost", "ca")))
    return {"CA": directory / "ca.pem", "CERT": directory / "localhost.pem", "KEY": directory / "localhost.key"}


@contextlib.contextmanager
def serving_tls(ca, own):
    """Have a server with this authority, and this file of its certificate and key."""
    (port,) = free_ports(1)
    stores = {
        f"ssl.{store}.{key}": value
        for store, path in (("keyStore", own), ("trustStore", ca))
        for key, value in (("location", str(path)), ("type", "PEM"))
    }
    with Ensemble(
        nodes=1,
        properties={
            "secureClientPort": str(port),
            "secureClientPortAddress": "127.0.0.1",
            "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
            "ssl.clientAuth": "need",
            **stores,
        },
        java_options=[WITH_NETTY],
    ) as ensemble:
        zoo = Zoo(f"localhost:{port}", ensemble)
        yield zoo
        zoo.close()
