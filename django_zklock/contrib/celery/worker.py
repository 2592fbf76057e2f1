"""Knows when a worker process ends, and what it leaves."""

from __future__ import annotations

from celery.signals import worker_process_shutdown, worker_shutdown

from django_zklock.zk import process


def close_session(**kwargs: object) -> None:
    """End the session of a worker process that ends, so that what it held is free at once."""
    process.reset()


# A pool process leaves without running exit handlers; the other pools' process runs them, but late.
worker_process_shutdown.connect(close_session, dispatch_uid="zklock.close_session")
worker_shutdown.connect(close_session, dispatch_uid="zklock.close_session")
