"""A Celery application without Django and locks. Celery or its broker loses the tasks that are lost here."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from celery import Celery
from celery.signals import worker_ready

HOME = Path(os.environ["CELERY_HOME"])

app = Celery("plainapp")
app.conf.update(json.loads((HOME / "settings.json").read_text()))
app.conf.update(task_acks_late=True, task_reject_on_worker_lost=True, broker_connection_retry_on_startup=False)


@worker_ready.connect
def say_ready(sender: Any, **_kwargs: Any) -> None:
    (HOME / f"ready-{sender.hostname}").touch()


@app.task(name="without_locks")
def without_locks() -> bool:
    """Tell whether this process runs nothing of this package."""
    return not any(name.startswith("django_zklock") for name in sys.modules)
