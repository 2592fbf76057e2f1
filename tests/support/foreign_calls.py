"""Find what must not run on the protocol's threads: handlers of logs, signals and warnings; reading files."""

import functools
import logging
import os
import ssl
import threading
import traceback
import warnings
from pathlib import Path

from django.apps import AppConfig
from django.dispatch import Signal

from django_zklock.core import log

FILE = "TEST_FOREIGN_CALLS"  # the variable with the path of the file that all processes of a test run write to

ENTRIES = (
    (logging.Handler, "handle"),
    (logging.Filterer, "filter"),
    (logging.Logger, "handle"),
    (logging.Logger, "makeRecord"),
    (Signal, "send"),
    (Signal, "send_robust"),
    (warnings, "showwarning"),
    (ssl.SSLContext, "load_verify_locations"),
    (ssl.SSLContext, "load_cert_chain"),
    (ssl.SSLContext, "load_default_certs"),
)
"""The functions by which `logging`, Django and Python call other people's code, and by which files of TLS are read."""


def install():
    for owner, name in ENTRIES:
        function = getattr(owner, name)
        if not hasattr(function, "is_watched"):
            setattr(owner, name, _watched(name, function))


def _watched(name, function):
    @functools.wraps(function)
    def call(*args, **kwargs):
        if log.on_protocol_thread():
            record(name)
        return function(*args, **kwargs)

    vars(call)["is_watched"] = True
    return call


def record(name):
    stack = "".join(traceback.format_stack(limit=12))
    with open(os.environ[FILE], "a") as file:
        file.write(f"{name} was called on {threading.current_thread().name} of process {os.getpid()}:\n{stack}\n")


def recorded():
    path = Path(os.environ[FILE])
    text = path.read_text() if path.exists() else ""
    path.unlink(missing_ok=True)
    return text


class ForeignCalls(AppConfig):
    name = "support.foreign_calls"

    def ready(self):
        if FILE in os.environ:
            install()
