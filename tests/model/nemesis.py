"""The faults of a process, its server or its nodes."""

from django_zklock.core.queue.nodes import Mark
from model.choices import FAULT

STRAY = "-ffff-8fff-bfff-"  # in the guid of a node that the nemesis makes


class Nemesis:
    def __init__(self, ensemble, callers, figures):
        self._ensemble = ensemble
        self._world = ensemble.world
        self._callers = callers
        self._figures = figures
        self._strays = 0
        self.spare = 0  # so many processes are not to end
        self._strikes = {
            "the connection breaks": self._break,
            "its session is killed": self._kill,
            "one of its nodes is deleted": self._delete,
            "a caller gives up": self._give_up,
            "a twin of its node is made": self._stray,
            "empty parents are reaped": lambda process: ensemble.reap(),
            "it crashes": self._crash,
            "it closes its session": self._close,
            "another server becomes the leader": lambda process: ensemble.elect(),
        }

    def consider(self, process):
        option = self._world.choose(FAULT, process.name)
        if not option or not process.running:
            return
        self._figures.faults += 1
        what = FAULT.options[option]
        self._world.note(f"{process.name}: {what}")
        if what.startswith(("paused", "suspended")):
            process.pause(_seconds(what), suspended=what.startswith("suspended"))
        elif what.startswith("isolated"):
            process.isolate(_seconds(what))
        elif what.startswith("its server"):
            self._cut_off(process, _seconds(what))
        else:
            self._strikes[what](process)

    def _break(self, process):
        for connection in list(process.connections):
            self._world.after(0.0, connection.client.run, connection.client.on_end, connection)

    def _cut_off(self, process, seconds):
        for connection in process.connections:
            connection.server.cut_off()
            self._world.after(seconds, connection.server.heal)

    def _kill(self, process):
        if process.session.session_id is not None:
            self._ensemble.kill(process.session.session_id)

    def _nodes(self, process):
        owned = self._ensemble.truth.owned(process.session.session_id or -1)
        return [path for path in owned if "/!" not in path]

    def _delete(self, process):
        for path in self._nodes(process)[:1]:
            self._ensemble.delete(path)

    def _stray(self, process):
        if not process.contenders:
            return  # nobody has asked for a node
        for path in self._nodes(process)[:1]:
            self._strays += 1
            self._ensemble.stray(path, f"{Mark.OWN.value}{self._strays:04d}{STRAY}{self._strays:012d}")

    def _give_up(self, process):
        for caller in self._callers:
            if caller.process is process and caller.waits:
                process.on_loop(caller.give_up)
                return

    def _crash(self, process):
        if self.spare > 0:
            self.spare -= 1
            process.crash()

    def _close(self, process):
        if self.spare > 0:
            self.spare -= 1
            process.closed = True
            process.loop.post(process.session._close, False)


def _seconds(what):
    return float(what.rpartition(" for ")[2].removesuffix(" s"))
