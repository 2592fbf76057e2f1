"""The Celery application, and a file system broker that several workers can share."""

from __future__ import annotations

import os
import time
import uuid
from pathlib import Path
from typing import Any

from celery import Celery
from kombu.transport import TRANSPORT_ALIASES, filesystem
from kombu.utils.json import dumps

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "example_project.settings")


class Channel(filesystem.Channel):
    """
    Write a message under another name first, and rename it.

    kombu writes in place, so a second worker can pick up a message whose text is not there yet; it would crash on it.
    """

    def _put(self, queue: str, message: Any, **_kwargs: Any) -> None:
        final = Path(self.data_folder_out, f"{time.monotonic_ns() // 1_000_000}_{uuid.uuid4()}.{queue}.msg")
        draft = final.with_suffix(".draft")
        draft.write_text(dumps(message))
        draft.rename(final)


class Transport(filesystem.Transport):
    """kombu's file system transport with the channel above."""

    Channel = Channel


TRANSPORT_ALIASES["filesystem"] = "example_project.celery:Transport"

app = Celery("example_project")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
