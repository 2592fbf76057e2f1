"""The URLs of the tests: none. Tests that need views name their own with `override_settings(ROOT_URLCONF=...)`."""

urlpatterns = []
