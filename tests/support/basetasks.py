"""Celery tasks whose base classes decide about new calls: those of celery-once and celery-singleton."""

from celery import Task
from celery_once import QueueOnce
from celery_singleton import Singleton

from django_zklock import zk_locked
from support.celeryapp import app
from support.policytasks import work

BASES = {
    "plain": {"base": Task},
    "once graceful": {"base": QueueOnce, "once": {"graceful": True}},
    "once raising": {"base": QueueOnce},
    "singleton": {"base": Singleton},
}
POLICIES = ("wait", "retry", "raise", "skip")


def make_tasks(app):
    """Add a task for each base class and policy. Their keys are equal, and their last arguments tell calls apart."""
    for policy in POLICIES:
        locked = zk_locked("{key}", on_conflict=policy)(work)
        for name, options in BASES.items():
            decorate = app.task(name=f"{name}, {policy}", shared=False, **options)
            decorate(locked)
    return app


def configure(url):
    """Return the settings of the base classes, whose keys are in this Redis."""
    once = {"backend": "celery_once.backends.Redis", "settings": {"url": url, "default_timeout": 3600}}
    return {"ONCE": once, "singleton_backend_url": url, "singleton_key_prefix": "singleton_"}


make_tasks(app)
