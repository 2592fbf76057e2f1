"""`python -m demo`: run the shop with traffic until Ctrl-C."""

from __future__ import annotations

import os
import socket
import sys
import time
from contextlib import ExitStack

from support.ensemble import Ensemble, free_ports

from demo.services import ServiceFailed, Site, end_on_signals, say, state_directory
from demo.zookeeper import answers, ensure_jars


def main() -> int:
    """Start everything, show the traffic, and stop everything."""
    end_on_signals()
    with ExitStack() as stack:
        try:
            home = stack.enter_context(state_directory("demo"))
            real = named_zookeeper() or started_zookeeper(stack)
            port = 0 if real else free_ports(1)[0]
            url = real or f"zk://127.0.0.1:{port}/shop?session_timeout=10"
            variables = {"SHOP_THINK_TIME": "0.8", **os.environ, "ZKLOCK_URL": url}
            site = stack.enter_context(Site(home, variables=variables, port=free_port(8000)))
            if not real:
                pid = site.start_zookeeper(port)
                say(f"ZooKeeper: the dev server, 127.0.0.1:{port}, process {pid}.")
            open_shop(stack, site)
            while True:
                time.sleep(1)
                site.check()
        except KeyboardInterrupt:
            say("\nStopping what was started ...")
        except ServiceFailed as problem:
            say(f"\n{problem}")
            return 1
    return 0


def named_zookeeper() -> str:
    """Return ZKLOCK_URL if a server answers there, else ""."""
    url = os.environ.get("ZKLOCK_URL", "")
    if url and answers(url):
        say("ZooKeeper: the one in ZKLOCK_URL.")
        return url
    if url:
        say("Nobody answers at ZKLOCK_URL, so here is another ZooKeeper.")
    return ""


def started_zookeeper(stack: ExitStack) -> str:
    """Start a real ZooKeeper and return its URL if ZOOKEEPER=real is set, else ""."""
    wanted = os.environ.get("ZOOKEEPER", "")
    if wanted not in ("", "real"):
        raise ServiceFailed(f"ZOOKEEPER is {wanted!r}. Say real, or nothing for the dev server.")
    if not wanted:
        return ""
    ensure_jars()
    ensemble = stack.enter_context(Ensemble(nodes=1))
    say(f"ZooKeeper: {ensemble.hosts}, process {ensemble.servers[0].pid}.")
    return f"{ensemble.url('shop')}?session_timeout=10"


def open_shop(stack: ExitStack, site: Site) -> None:
    """Migrate, start the web server and a worker, and start the traffic."""
    site.join()
    site.manage("migrate", "--verbosity=0")
    site.start_web()
    site.start_workers(["worker"])
    from demo.traffic import Traffic  # noqa: PLC0415 - imports the shop, which needs Django set up

    traffic = Traffic(site)
    stack.callback(traffic.stop)
    say(f"\n    {site.url}        the shop\n    {site.url}admin/  log in as demo, password demo")
    say(f"    {site.url}admin/zklock/lock/  who holds which lock, and who waits")
    say(f"    {site.url}metrics       the metrics of the web process, for Prometheus")
    say(f"    {site.logs}  logs\n\nCtrl-C stops everything.\n")
    traffic.start()


def free_port(wanted: int) -> int:
    """Return a port that can be listened on, or 0."""
    with socket.socket() as candidate:
        candidate.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            candidate.bind(("127.0.0.1", wanted))
        except OSError:
            return 0
    return wanted


if __name__ == "__main__":
    sys.exit(main())
