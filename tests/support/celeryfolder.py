"""A broker and a result backend in a folder, for the Celery applications of the tests. Nothing of locks is imported."""

import json
import os
import signal
import time
import uuid
from pathlib import Path

from celery.backends.filesystem import FilesystemBackend
from celery.signals import worker_ready
from kombu.transport import TRANSPORT_ALIASES, filesystem
from kombu.utils.json import dumps

HOME = "CELERY_HOME"  # the variable that names the folder
QUEUES = ("celery", "other")  # of the workers of the tests
SHOW_THREADS = signal.SIGWINCH  # billiard handles most other signals in the processes of its pool
SETTINGS = "settings.json"  # in that folder: Celery settings that go before those below


class Channel(filesystem.Channel):
    """Write a message under another name first: kombu writes in place, and a reader could come too early."""

    def _put(self, queue, payload, **_kwargs):
        final = Path(self.data_folder_out, f"{time.monotonic_ns() // 1_000_000}_{uuid.uuid4()}.{queue}.msg")
        draft = final.with_suffix(".draft")
        draft.write_text(dumps(payload))
        draft.rename(final)


class Transport(filesystem.Transport):
    Channel = Channel


class Results(FilesystemBackend):
    """Write a result under another name first, for the same reason."""

    def set(self, key, value):
        final = Path(os.fsdecode(self._filename(key)))
        draft = final.with_name(f".{uuid.uuid4()}")
        draft.write_bytes(value if isinstance(value, bytes) else value.encode())
        draft.rename(final)


TRANSPORT_ALIASES["filesystem"] = "support.celeryfolder:Transport"


def configure(app, home):
    for name in ("messages", "control", "results"):
        (home / name).mkdir(parents=True, exist_ok=True)
    app.conf.update(
        broker_url="filesystem://",
        broker_transport_options={
            "data_folder_in": str(home / "messages"),
            "data_folder_out": str(home / "messages"),
            "control_folder": str(home / "control"),
            "polling_interval": 0.02,
        },
        result_backend=f"support.celeryfolder:Results+file://{home / 'results'}",
        worker_prefetch_multiplier=1,
        worker_lost_wait=1,  # seconds until the loss of a process is believed; 10 by default
        broker_connection_retry_on_startup=False,
    )
    if (home / SETTINGS).exists():
        app.conf.update(json.loads((home / SETTINGS).read_text()))
    return app


@worker_ready.connect
def say_ready(sender, **_kwargs):
    """Say so in the second round of the event loop, if there is one: on Redis, the first one subscribes to commands."""
    ready = Path(os.environ[HOME], f"ready-{sender.hostname}")
    if sender.hub is None:
        ready.touch()
    else:
        sender.hub.call_later(0.01, sender.hub.call_later, 0.01, ready.touch)
