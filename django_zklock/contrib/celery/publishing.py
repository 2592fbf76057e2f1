"""A message waits for the releases of this process that are on their way, so that its task finds the locks free."""

from __future__ import annotations

from celery.signals import before_task_publish

from django_zklock.core.protocol import releases

before_task_publish.connect(releases.wait, dispatch_uid="zklock.wait_for_releases")
