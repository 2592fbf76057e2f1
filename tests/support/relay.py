"""A port that passes bytes on: between a follower and its leader, or a lock coordinator and its clients."""

import contextlib
import socket
import threading


class Relay:
    """
    Pass bytes on to a port for the length of a with block.

    It can be frozen: nothing passes, and no end is told. It accepts connections nevertheless. It can refuse them, too.
    """

    def __init__(self, target, host="127.0.0.1", port=0):
        self._target = target
        self.refuses = False
        self.accepted = 0  # connections
        self._open = threading.Event()  # of the connections from now on
        self._open.set()
        self._stranded = []
        self._listener = socket.create_server((host, port))
        self._sockets = []
        self.port = self._listener.getsockname()[1]

    def freeze(self):
        self._open.clear()

    def heal(self):
        self._open.set()

    def strand(self):
        """Freeze the present connections for good; pass on what later ones send."""
        self.freeze()
        self._stranded.append(self._open)
        self._open = threading.Event()
        self.heal()

    def reset(self):
        sockets, self._sockets = self._sockets, []
        for end in sockets:
            _close(end)

    def __enter__(self):
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *error):
        _close(self._listener)
        self.reset()
        for stranded in (*self._stranded, self._open):
            stranded.set()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                if self.refuses:
                    near.close()
                    continue
                self.accepted += 1
                try:
                    far = socket.create_connection(("127.0.0.1", self._target))
                except OSError:
                    near.close()
                    continue
                self._sockets += [near, far]
                for source, sink in ((near, far), (far, near)):
                    threading.Thread(target=self._pump, args=(source, sink, self._open), daemon=True).start()

    @staticmethod
    def _pump(source, sink, is_open):
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                is_open.wait()
                sink.sendall(data)
        for end in (source, sink):
            _close(end)


def _close(end):
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()
