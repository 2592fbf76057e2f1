"""A site with nothing but the admin, for the tests of the dashboard."""

from django.contrib import admin
from django.contrib.admin.sites import AdminSite
from django.contrib.auth.models import Permission, User
from django.test import Client
from django.urls import path

from django_zklock.admin import LockAdmin
from django_zklock.dashboard.views import health_json, incidents_json, locks_json
from django_zklock.models import Lock
from support.admintemplates import ADMIN_MIDDLEWARE, ADMIN_TEMPLATES

LIST = "/admin/zklock/lock/"


own_site = AdminSite(name="own")
own_site.register(Lock, LockAdmin)

urlpatterns = [
    path("admin/", admin.site.urls),
    path("own/", own_site.urls),
    path("locks.json", locks_json),
    path("health.json", health_json),
    path("incidents.json", incidents_json),
]


SETTINGS = {
    "ROOT_URLCONF": "support.adminsite",
    "MIDDLEWARE": ADMIN_MIDDLEWARE,
    "TEMPLATES": ADMIN_TEMPLATES,
    "PASSWORD_HASHERS": ["django.contrib.auth.hashers.MD5PasswordHasher"],
}


ALL = ("view_lock", "break_lock", "hold_lock", "limit_lock", "request_release_lock")


def user_with(*permissions):
    """Return the client of a member of staff with these permissions on locks; with all of them, she is Olga."""
    name = "olga" if permissions == ALL else "-".join(["u", *permissions])
    user = User.objects.create_user(name, is_staff=True)
    user.user_permissions.set(Permission.objects.filter(content_type__app_label="zklock", codename__in=permissions))
    client = Client()
    client.force_login(user)
    return client
