"""One account for each kind of visitor, and its session."""

from __future__ import annotations

from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
from django.contrib.auth.models import Permission, User
from django.contrib.sessions.backends.db import SessionStore

VISITORS = {
    "viewer": ["view_lock"],
    "operator": ["view_lock", "break_lock", "hold_lock", "limit_lock", "request_release_lock", "show_stack_lock"],
}


def log_in(user: User) -> str:
    session = SessionStore()
    session[SESSION_KEY] = str(user.pk)
    session[BACKEND_SESSION_KEY] = "django.contrib.auth.backends.ModelBackend"
    session[HASH_SESSION_KEY] = user.get_session_auth_hash()
    session.create()
    assert session.session_key
    return session.session_key


def enrol() -> dict[str, str]:
    """Make the accounts, if they are missing; return new sessions by user name."""
    sessions = {}
    for name, permissions in VISITORS.items():
        user, _ = User.objects.get_or_create(username=name, is_staff=True)
        granted = Permission.objects.filter(codename__in=permissions)
        assert len(granted) == len(permissions), f"no such permissions: {permissions}"
        user.user_permissions.set(granted)
        sessions[name] = log_in(user)
    return sessions
