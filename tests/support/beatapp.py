"""A Celery application with a schedule, for real beat processes; named by BEAT_HOME and BEAT_SCHEDULE (JSON)."""

from __future__ import annotations

import json
import os
from pathlib import Path

from celery import Celery

from support import celeryapp

app = Celery("beatapp", set_as_current=False)
if "BEAT_HOME" in os.environ:
    celeryapp.configure(app, Path(os.environ["BEAT_HOME"]))
app.conf.update(
    beat_schedule=json.loads(os.environ.get("BEAT_SCHEDULE", "{}")),
    beat_scheduler="django_zklock.contrib.celery:ZkScheduler",
    beat_cron_starting_deadline=None,
    result_expires=None,  # else there is an entry of Celery's own
    **json.loads(os.environ.get("BEAT_CONF", "{}")),
)
