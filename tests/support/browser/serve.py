"""
The site's process: `python -m support.browser.serve`.

Makes the database and one account for each kind of visitor, writes its address and their sessions to the standard
output as one line of JSON, and serves until it is ended.
"""

from __future__ import annotations

import json
import os
import socketserver
import sys
from wsgiref.simple_server import WSGIServer

from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
from django.contrib.auth.models import Permission, User
from django.contrib.sessions.backends.db import SessionStore
from django.contrib.staticfiles.handlers import StaticFilesHandler
from django.core.management import call_command
from django.core.servers.basehttp import WSGIRequestHandler
from django.core.wsgi import get_wsgi_application

VISITORS: dict[str, list[str] | None] = {
    "stranger": None,  # no member of the staff
    "clerk": [],
    "viewer": ["view_lock"],
    "operator": ["view_lock", "break_lock", "hold_lock"],
}
"""By user name, what each may do."""


class Server(socketserver.ThreadingMixIn, WSGIServer):
    """One thread for each request, as the pages of several visitors are asked for at once."""

    daemon_threads = True
    request_queue_size = 50


def log_in(user: User) -> str:
    """Return the key of a session of this user."""
    session = SessionStore()
    session[SESSION_KEY] = str(user.pk)
    session[BACKEND_SESSION_KEY] = "django.contrib.auth.backends.ModelBackend"
    session[HASH_SESSION_KEY] = user.get_session_auth_hash()
    session.create()
    assert session.session_key
    return session.session_key


def enrol() -> dict[str, str]:
    """Make the accounts; return their sessions by user name."""
    sessions = {}
    for name, permissions in VISITORS.items():
        user = User.objects.create_user(name, is_staff=permissions is not None)
        found = Permission.objects.filter(codename__in=permissions or [])
        assert len(found) == len(permissions or []), f"no such permissions: {permissions}"
        user.user_permissions.set(found)
        sessions[name] = log_in(user)
    sessions["root"] = log_in(User.objects.create_superuser("root"))
    return sessions


def main() -> None:
    application = get_wsgi_application()
    call_command("migrate", verbosity=0)
    sessions = enrol()
    server = Server(("127.0.0.1", 0), WSGIRequestHandler)
    server.set_app(StaticFilesHandler(application))
    print(json.dumps({"url": f"http://127.0.0.1:{server.server_port}", "sessions": sessions}), flush=True)
    server.serve_forever()


if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "support.browser.settings")
    sys.exit(main())
