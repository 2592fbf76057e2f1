"""Our own locks under a neighbour's commands; as a program, a process of its own, to be killed."""

import sys

from support.neighbours.actors import Candidate, Locks
from support.neighbours.protocol import TIMEOUT, OtherClient

OPTIONS = {"lock": {}, "read": {"kind": "read"}, "write": {"kind": "write"}, "leader": {}}
"""Of `zk_lock`, for each kind that a command may name; a value of `compat` may be joined to it by a plus."""


def options_of(kind):
    name, _, compat = kind.partition("+")
    return {**OPTIONS[name], **({"compat": compat} if compat else {})}


class Ours(Locks):
    def __init__(self, base):
        super().__init__()
        self._base = base

    def make(self, kind, path, name):
        from django_zklock import zk_leader, zk_lock

        key = path.removeprefix(f"{self._base}/")
        if kind.startswith("leader"):
            leader = zk_leader(key, **options_of(kind))
            return Candidate(leader.run, leader.stop)
        return zk_lock(key, **options_of(kind))

    def acquired(self, lock, wait):
        hold = lock.acquire(blocking=False) if wait == 0 else lock.acquire(timeout=wait if wait > 0 else -1)
        if hold is not None:
            hold.check()
        return hold is not None

    def try_acquire(self, actor, kind, path, wait=10, name=""):
        return self.acquire(actor, kind, path, wait, name).result(TIMEOUT) == "true"

    def release(self, actor, kind, path):
        self.start_release(actor, kind, path).result(TIMEOUT)


def our_process(zoo):
    command = [sys.executable, "-u", "-m", "support.neighbours.ours", zoo.base]
    return OtherClient(command, **zoo.environment(session_timeout=2))


if __name__ == "__main__":
    import django

    django.setup()
    Ours(sys.argv[1]).serve()
