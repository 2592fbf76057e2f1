"""One account for each kind of visitor, and its session."""

from django.conf import settings
from django.contrib.auth.models import Permission, User
from django.test import Client

VISITORS = {
    "viewer": ["view_lock"],
    "operator": ["view_lock", "break_lock", "hold_lock", "limit_lock", "request_release_lock"],
}


def enrol():
    sessions = {}
    for name, permissions in VISITORS.items():
        user, _ = User.objects.get_or_create(username=name, is_staff=True)
        granted = Permission.objects.filter(codename__in=permissions)
        assert len(granted) == len(permissions), f"no such permissions: {permissions}"
        user.user_permissions.set(granted)
        client = Client()
        client.force_login(user)
        sessions[name] = client.cookies[settings.SESSION_COOKIE_NAME].value
    return sessions
