"""Prometheus' promtool. Debian's package brings a service, so the program is unpacked into `.cache`."""

import shutil
import subprocess
from pathlib import Path

CACHE = Path(__file__).resolve().parents[2] / ".cache" / "promtool"
PACKAGES = ("promtool", "prometheus")  # a package of its own, from Debian 13 on


def find():
    return shutil.which("promtool", path=CACHE / "usr" / "bin") or shutil.which("promtool")


def unpack():
    """Make sure that promtool is here, where there is apt. Its test is skipped without it."""
    if find() is not None or shutil.which("apt-get") is None:
        return
    CACHE.mkdir(parents=True, exist_ok=True)
    for name in PACKAGES:
        print(f"Unpacking promtool: apt-get download {name}", flush=True)
        subprocess.run(["apt-get", "-qq", "download", name], cwd=CACHE, stderr=subprocess.DEVNULL, check=False)
        for package in CACHE.glob(f"{name}_*.deb"):
            subprocess.run(["dpkg-deb", "-x", package.name, "."], cwd=CACHE, check=False)
            package.unlink()
        if find() is not None:
            break
    (CACHE / "usr" / "bin" / "prometheus").unlink(missing_ok=True)  # 50 MB, which nobody needs
