"""A Celery application with a schedule, for real beats; a file may have one strike itself before it sends a tick."""

import json
import os
import signal
import time
from pathlib import Path

from celery import Celery
from celery.signals import beat_init

from support import celeryfolder

app = Celery("beatapp", set_as_current=False)
if "BEAT_HOME" in os.environ:
    celeryfolder.configure(app, Path(os.environ["BEAT_HOME"]))
app.conf.update(
    beat_schedule=json.loads(os.environ.get("BEAT_SCHEDULE", "{}")),
    beat_scheduler="django_zklock.contrib.celery.beat:ZkScheduler",
    beat_cron_starting_deadline=None,
    result_expires=None,  # else there is an entry of Celery's own
    **json.loads(os.environ.get("BEAT_CONF", "{}")),
)


@beat_init.connect
def hang_if_told(**_kwargs):
    """Let SIGUSR2 stop the main thread, and no other. Signs of life may come more often than in production."""
    from django_zklock.contrib.celery import schedule

    signal.signal(signal.SIGUSR2, lambda *_: time.sleep(600))
    schedule.RENEW_EVERY = float(os.environ.get("BEAT_RENEW_EVERY", schedule.RENEW_EVERY))


@beat_init.connect
def strike(**_kwargs):
    from django_zklock.contrib.celery.schedule import ScheduleRecords

    note = Path(os.environ["BEAT_STRIKE"])
    record_run = ScheduleRecords.record_run

    def record_run_and_be_struck(self, entry):
        tick = record_run(self, entry)
        if note.exists():
            number = int(note.read_text())
            note.unlink()
            os.kill(os.getpid(), signal.Signals(number))
        return tick

    ScheduleRecords.record_run = record_run_and_be_struck
