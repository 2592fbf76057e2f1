"""Print how rows of django-celery-beat differ from those that continue from records. TIME_ZONE is that of a process."""

import itertools
import os
import time
from datetime import UTC, datetime, timedelta

import django
from celery import Celery
from django.conf import settings
from django.core.management import call_command
from django.test import override_settings

from django_zklock.contrib.celery.schedule import Run, continue_from

ZONES = ("America/New_York", "Asia/Shanghai", "UTC")
KINDS = ("interval", "crontab", "one_off")


def edit(row):
    row.description = "edited"
    row.save()


def enable_again(row):
    for row.enabled in (False, True):
        row.save()


def keep(row): ...


def entry_of(row):
    from django_celery_beat.schedulers import ModelEntry

    return ModelEntry(type(row).objects.get(pk=row.pk), app=Celery("rows", set_as_current=False))


def ran(kind, name, *, saved):
    from django_celery_beat.models import (
        CrontabSchedule,
        IntervalSchedule,
        PeriodicTask,
    )

    every, _ = IntervalSchedule.objects.get_or_create(every=1, period="hours")
    daily, _ = CrontabSchedule.objects.get_or_create(minute="0", hour=str((datetime.now(UTC).hour - 2) % 24))
    schedule = {"crontab": daily} if kind == "crontab" else {"interval": every}
    row = PeriodicTask.objects.create(name=name, task="t", one_off=kind == "one_off", **schedule)
    record = Run(datetime.now(UTC), 1)
    entry = next(entry_of(row))
    if saved:
        entry.save()
        entry.is_due()  # disables a one-off row
    row.refresh_from_db()
    return row, record


def state(entry):
    due, seconds = entry.is_due()
    return due, round(seconds / 60), entry.total_run_count, entry.model.total_run_count


def compare(kind, change, label):
    row, record = ran(kind, label, saved=True)
    change(row)
    plain, ours = entry_of(row), entry_of(row)
    continue_from(ours, record)
    before, after = state(plain), state(ours)
    if before != after:
        print(f"{row.name}: plain {before}, ours {after}")


def crash(kind, label):
    row, record = ran(kind, f"{label}, crash", saved=False)
    ours = entry_of(row)
    continue_from(ours, record)
    last = ours.last_run_at.replace(tzinfo=ours.last_run_at.tzinfo or UTC)
    if abs(last - record.at) > timedelta(seconds=1) or ours.model.total_run_count != 1:
        print(f"{row.name}: last run {last}, recorded {record.at}, count {ours.model.total_run_count}")


def main():
    settings.configure(
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
        INSTALLED_APPS=["django_celery_beat"],
        MIGRATION_MODULES={"django_celery_beat": None},  # tables without migrations
    )
    django.setup()
    call_command("migrate", run_syncdb=True, verbosity=0)
    for zone, aware in itertools.product(ZONES, (True, False)):
        for process_zone in {zone, "UTC"}:
            with override_settings(TIME_ZONE=zone, USE_TZ=aware, DJANGO_CELERY_BEAT_TZ_AWARE=aware):
                os.environ["TZ"] = process_zone  # after `settings.configure()`, it is not Django's
                time.tzset()
                for kind in KINDS:
                    label = f"{zone}, process in {process_zone}, {aware=}, {kind}"
                    crash(kind, label)
                    for change in (keep, edit, enable_again):
                        compare(kind, change, f"{label}, {change.__name__}")
    print("compared")


if __name__ == "__main__":
    main()
