"""Celery tasks whose locks are traced. A span is around each run, as an instrumentation of Celery would make it."""

import os
from pathlib import Path

from celery.signals import task_postrun, task_prerun
from django.dispatch import receiver
from opentelemetry import context, propagate, trace

from django_zklock.contrib.otel import connect
from django_zklock.signals import lock_waiting
from support.celeryapp import app
from support.celeryfolder import HOME
from support.traced import SPANS, WAITING, to_file

provider = to_file(Path(os.environ[HOME], SPANS))
tracer = provider.get_tracer("project")
connect(provider)

__all__ = ["app"]


@receiver(lock_waiting)
def note_waiting(**kwargs):
    Path(os.environ[HOME], WAITING).touch()


@task_prerun.connect(weak=False)
def begin(*, task, **kwargs):
    request = task.request
    span = tracer.start_span("run", propagate.extract({"traceparent": getattr(request, "traceparent", "")}))
    request.span, request.token = span, context.attach(trace.set_span_in_context(span))


@task_postrun.connect(weak=False)
def end(*, task, **kwargs):
    request = task.request
    context.detach(request.token)
    request.span.end()
