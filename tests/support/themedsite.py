"""The admin under the theme django-unfold, and that of Django. The app of the theme must be installed."""

from django.urls import path
from unfold.admin import ModelAdmin
from unfold.sites import UnfoldAdminSite

from django_zklock.admin import LockAdminMixin
from django_zklock.models import Lock
from support import adminsite


class ThemedLockAdmin(LockAdminMixin, ModelAdmin):
    """As its guide says of the models of other packages."""


site = UnfoldAdminSite(name="themed")
site.register(Lock, ThemedLockAdmin)
urlpatterns = [*adminsite.urlpatterns, path("themed/", site.urls)]
