"""The system checks: problems of `settings.ZKLOCK`, unwise values, locked views, and policies of functions."""

import re

import pytest
from celery import Celery
from celery._state import _task_stack
from django.apps import apps
from django.core import checks
from django.core import checks as django_checks
from django.core.exceptions import ImproperlyConfigured
from django.core.management import call_command
from django.core.management.base import SystemCheckError
from django.http import HttpResponse
from django.test import override_settings
from django.urls import include, path
from django.utils.decorators import method_decorator
from django.views import View
from rest_framework.viewsets import ViewSet
from support import ledgersite
from support.ledger import Ledger

from django_zklock import conf, zk_locked
from django_zklock.checks import check_views
from django_zklock.middleware import LockConflictMiddleware

IDS = re.compile(r"zklock\.[EW]\d{3}")


def run(raw, *, deploy=False):
    with override_settings(ZKLOCK=raw):
        messages = django_checks.run_checks(tags=["zklock"], include_deployment_checks=deploy)
    assert all(IDS.fullmatch(str(message.id)) and message.hint for message in messages)
    return messages


def ids(raw, *, deploy=False):
    return sorted(str(message.id).removeprefix("zklock.") for message in run(raw, deploy=deploy))


def test_every_problem_becomes_an_error():
    raw = {"URL": "zk://h:port", "ROOTS": "/x", "ACL": "none", "LOCKS": {"a": {}}}
    assert [(message.id, message.msg, message.hint) for message in run(raw)] == [
        (f"zklock.{problem.id}", problem.message, problem.hint) for problem in conf.problems(raw)
    ]
    assert ids(raw) == ["E002", "E003", "E007", "E010"]


def test_checks_fail_the_command():
    with override_settings(ZKLOCK=None), pytest.raises(SystemCheckError, match=r"zklock\.E001"):
        call_command("check")


TLS, LOCAL, PLAIN = "zk+tls://zk1.example.org/app", "zk://localhost/app", "zk://127.0.0.1,10.0.0.1/app"
OTHERS = ("world", "anyone")


@pytest.mark.parametrize(
    ("raw", "deployed", "always"),
    [
        ({"URL": TLS, "AUTH": "user:pw"}, [], []),
        ({"URL": "zk://localhost,127.0.0.1,[::1]/app"}, [], []),
        # Only TLS or a loopback address is accepted: credentials do not guard a session.
        ({"URL": PLAIN}, ["W001", "W010"], []),
        ({"URL": PLAIN, "AUTH": "user:pw"}, ["W001"], []),
        # TLS alone does not ask who connects.
        ({"URL": TLS}, ["W010"], []),
        ({"URL": TLS, "AUTH": "user:pw", "ACL": "open"}, ["W010"], []),
        ({"URL": TLS, "AUTH": "user:pw", "ACL": [(*OTHERS, "crwda")]}, ["W010"], []),
        ({"URL": TLS, "AUTH": "user:pw", "ACL": [("digest", "user:hash", "crwda"), (*OTHERS, "d")]}, ["W010"], []),
        ({"URL": TLS, "AUTH": "user:pw", "ACL": [("digest", "user:hash", "crwda"), (*OTHERS, "r")]}, [], []),
        ({"URL": TLS, "ACL": [("ip", "10.0.0.0/8", "crwda")]}, [], []),
        ({"URL": TLS, "ACL": [("ip", "0.0.0.0/0", "crwda")]}, ["W010"], []),
        ({"URL": TLS, "ACL": [("ip", "::/0", "d")]}, ["W010"], []),
        ({"URL": TLS, "ACL": [("ip", "0.0.0.0/0", "r"), ("digest", "user:hash", "crwda")]}, [], []),
        # An ordinary pause of a process may outlast the lease.
        ({"URL": LOCAL, "SESSION_TIMEOUT": 5.9}, ["W002"], ["W002"]),
        ({"URL": LOCAL, "SESSION_TIMEOUT": 6}, [], []),
        # Two projects with default settings would share every name.
        ({"URL": LOCAL, "SESSION_TIMEOUT": 20000}, ["W015"], ["W015"]),
        ({"URL": f"{LOCAL}?connect_timeout=5000"}, ["W015"], ["W015"]),
        ({"URL": LOCAL, "CONNECT_TIMEOUT": "5000", "DEADLOCK_TIMEOUT": None}, ["W015"], ["W015"]),
        ({"URL": LOCAL, "DEFAULTS": {"timeout": 5000, "linger": 5000}}, ["W015"] * 2, ["W015"] * 2),
        ({"URL": LOCAL, "LOCKS": {"a": {"path": "a", "timeout": 5000}}}, ["W015"], ["W015"]),
        # A hold may last for hours.
        ({"URL": LOCAL, "DEFAULTS": {"timeout": 3600, "max_hold": 7200, "warn_after": 4000, "grace": None}}, [], []),
        ({"URL": "zk://localhost"}, ["W003"], []),
        ({"URL": "zk://localhost", "ROOT": "/app"}, [], []),
        # Warnings wait until the errors are gone.
        ({"URL": "zk://10.0.0.1", "SESSION_TIMEOUT": 1}, ["W001", "W002", "W003", "W010"], ["W002"]),
        ({"URL": "zk://10.0.0.1", "SESSION_TIMEOUT": 1, "ROOT": "x"}, ["E004"], ["E004"]),
        ({}, ["E003"], ["E003"]),
    ],
)
def test_unwise_settings_cause_warnings(raw, deployed, always):
    assert (ids(raw, deploy=True), ids(raw)) == (deployed, always)


@pytest.mark.parametrize(("acl", "warned"), [({}, True), ({"ACL": "open"}, True), ({"ACL": "creator"}, False)])
def test_a_client_certificate_alone_does_not_close_the_acl(acl, warned):
    """Each client that ZooKeeper accepts may change the znodes, until they name the certificate of their creator."""
    raw = {"URL": "zk+tls://zk1.example.org/app", "TLS": {"CERT": "c", "KEY": "k"}, **acl}
    assert ids(raw, deploy=True) == ["W010"] * warned


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ({"DEFAULTS": {"limit": 3, "kind": "read"}}, 'ZKLOCK["DEFAULTS"] has limit=3 and kind="read"'),
        ({"LOCKS": {"a": {"path": "a", "limit": 3, "kind": "write"}}}, '"a"] (or DEFAULTS) has limit=3 and kind="wr'),
        ({"LOCKS": {"a": {"path": "a", "compat": "kazoo", "min_hold": 1}}}, "other clients do not know"),
        (
            {"DEFAULTS": {"compat": "kazoo"}, "LOCKS": {"a": {"path": "a", "limit": 3}}},
            "semaphores cannot share a queue with other clients",
        ),
        (
            {"DEFAULTS": {"max_hold": 5}, "LOCKS": {"a": {"path": "a", "min_hold": 9}}},
            "(or DEFAULTS) has max_hold=5, which is less than min_hold=9.",
        ),
        ({"LOCKS": {"a": {"path": "a", "linger": 2, "limit": 3}}}, "linger=2 and limit=3, but only exclusive locks"),
        ({"LOCKS": {"a": {"path": "a", "linger": 2, "kind": "read"}}}, 'linger=2 and kind="read", but only exclusive'),
        (
            {"DEFAULTS": {"linger": 0.5}, "LOCKS": {"a": {"path": "a", "min_hold": 9}}},
            "linger=0.5 and min_hold=9, which keeps the lock from the next owners in this process, too",
        ),
    ],
)
def test_options_that_exclude_each_other_are_errors(raw, expected):
    (message,) = run({"URL": "zk://localhost/app", **raw})
    assert message.id == "zklock.E013"
    assert expected in message.msg


def test_an_entry_may_override_a_default():
    defaults = {"limit": 3, "max_hold": 5}
    locks = {"a": {"path": "a", "kind": "read"}, "b": {"path": "b", "max_hold": None, "min_hold": 9}}
    assert run({"URL": "zk://localhost/app", "DEFAULTS": defaults, "LOCKS": locks}) == []
    defaults = {"linger": 2}
    locks = {
        "a": {"path": "a", "kind": "read", "linger": 0},
        "b": {"path": "b", "kind": "write"},
        "c": {"path": "c", "linger": 0, "limit": 2},
    }
    assert run({"URL": "zk://localhost/app", "DEFAULTS": defaults, "LOCKS": locks}) == []


def test_a_decorator_refuses_options_that_exclude_each_other():
    with pytest.raises(ValueError, match="a semaphore has no sides"):
        zk_locked("a", kind="read", limit=3)
    settings = {"URL": "zk://localhost/app", "LOCKS": {"a": {"path": "a", "limit": 3}}}
    with override_settings(ZKLOCK=settings):
        with pytest.raises(ValueError, match=r"The lock 'a' has limit=3 and kind=\"read\".* limit=None"):
            zk_locked("a", kind="read")(lambda: None)
        zk_locked("a", kind="read", limit=None)(lambda: None)


# --- views under ATOMIC_REQUESTS --------------------------------------------------------------------------------------


@pytest.fixture
def ledger(tmp_path):
    ledger = Ledger("ledger", tmp_path / "ledger.sqlite3")
    ledger.settings["ATOMIC_REQUESTS"] = True
    yield ledger
    ledger.close()


class OwnMiddleware(LockConflictMiddleware):
    """That of a project."""


class Urls:
    def __init__(self, *patterns):
        self.urlpatterns = list(patterns)


def messages_for(*routes):
    patterns = [pattern for pattern in ledgersite.urlpatterns if str(pattern.pattern) in routes]
    assert len(patterns) == len(routes)
    with override_settings(ROOT_URLCONF=Urls(*patterns)):
        return [(message.id, message.msg) for message in list(check_views(conf.current()))]


@pytest.mark.parametrize(
    "route",
    [
        "plain/",
        "wrapped/",
        "dispatched/",
        "own_dispatch/",
        "opted_out_with_its_own/",
        "opted_out_above/",
        "async_view/",
        "async_view_opted_out/",
        "calls_helper/",
        "handler_opted_out/",
        "api_function_opted_out/",
        "action_opted_out/",
        "other_action_opted_out/",
    ],
)
def test_a_view_with_a_correct_transaction_causes_no_warning(ledger, route):
    assert messages_for(route) == []


@pytest.mark.parametrize(
    ("route", "handler"),
    [
        ("handler/", "get of support.ledgersite.Handler"),
        ("decorated_handler/", "get of support.ledgersite.DecoratedHandler"),
        ("action/", "buy of support.ledgersite.Actions"),
    ],
)
def test_a_locked_handler_causes_a_warning(ledger, route, handler):
    """Its transaction begins before its lock, even if a framework calls it."""
    ((name, words),) = messages_for(route)
    assert name == "zklock.W005"
    assert words.endswith(f" 1 locked handlers before the lock, with their databases: {handler} (ledger).")


def test_many_locked_handlers_cause_one_warning(ledger):
    class Handler(View):
        @zk_locked("x")
        def get(self): ...

    views = [type(f"View{number}", (Handler,), {}) for number in range(9)]
    urls = Urls(*(path(f"{number}/", view.as_view()) for number, view in enumerate(views)))
    with override_settings(ROOT_URLCONF=urls):
        (message,) = list(check_views(conf.current()))
        assert "of 9 locked handlers" in message.msg
        assert message.msg.endswith("View4 (ledger).")
        with override_settings(SILENCED_SYSTEM_CHECKS=["zklock.W005"]):
            assert message.is_silenced()


@pytest.mark.parametrize(
    ("given", "settings"),
    [
        ({"release_on": "commit"}, {}),
        ({}, {"LOCKS": {"x": {"path": "x", "release_on": "commit"}}}),
        ({}, {"DEFAULTS": {"release_on": "exit"}}),
    ],
    ids=["decorator", "entry", "defaults"],
)
@pytest.mark.parametrize("name", ["x", ["x"], lambda self: "x"], ids=["name", "list", "callable"])
def test_a_handler_whose_lock_has_release_on_causes_no_warning(ledger, given, settings, name):
    class Handler(View):
        @zk_locked(name, **given)
        def get(self): ...

    is_known = isinstance(name, (str, list)) or "LOCKS" not in settings  # the entry of a callable's key is not
    urls = Urls(path("x/", Handler.as_view()))
    with override_settings(ROOT_URLCONF=urls, ZKLOCK={"URL": "zk://localhost/app", **settings}):
        assert [message.id for message in list(check_views(conf.current()))] == ["zklock.W005"] * (not is_known)


def test_without_atomic_requests_no_view_is_warned_of(ledger):
    ledger.settings["ATOMIC_REQUESTS"] = False
    assert messages_for("handler/") == []


@pytest.mark.parametrize(
    ("middleware", "ids"),
    [
        ([], ["zklock.W009"]),
        (["shop.gone.Middleware"], ["zklock.W009"]),
        (["django_zklock.middleware.LockConflictMiddleware"], []),
        (["unit.settings.test_checks.OwnMiddleware"], []),
    ],
    ids=["none", "one that is not there", "ours", "a subclass of ours"],
)
@pytest.mark.parametrize("route", ["plain/", "wrapped/", "decorated_handler/", "action/"])
def test_a_locked_view_needs_the_middleware(middleware, ids, route):
    with override_settings(MIDDLEWARE=middleware):
        assert [id for id, _ in messages_for(route)] == ids
        assert messages_for("calls_helper/") == []


@pytest.mark.parametrize(
    ("given", "settings"),
    [
        ({"on_conflict": "skip"}, {}),
        ({}, {"LOCKS": {"x": {"path": "x", "on_conflict": "skip"}}}),
        ({}, {"DEFAULTS": {"on_conflict": "skip"}}),
    ],
    ids=["decorator", "entry", "defaults"],
)
def test_a_view_that_is_skipped_needs_no_middleware(given, settings):
    view = zk_locked("x", **given)(lambda request: None)
    with override_settings(
        ROOT_URLCONF=Urls(path("x/", view)), MIDDLEWARE=[], ZKLOCK={"URL": "zk://localhost/app", **settings}
    ):
        assert list(check_views(conf.current())) == []


def test_handlers_of_rest_framework_may_have_an_exception_handler_instead():
    """The lock of a plain view, or of `dispatch`, raises outside that handler."""
    handler = {"EXCEPTION_HANDLER": "django_zklock.contrib.rest_framework.exception_handler"}
    dispatched = method_decorator(zk_locked("x"), name="dispatch")(type("Dispatched", (ViewSet,), {}))
    with override_settings(MIDDLEWARE=[], REST_FRAMEWORK=handler):
        assert messages_for("action/") == []
        assert [id for id, _ in messages_for("action/", "plain/")] == ["zklock.W009"]
        with override_settings(ROOT_URLCONF=Urls(path("x/", dispatched.as_view({"get": "list"})))):
            assert [message.id for message in list(check_views(conf.current()))] == ["zklock.W009"]


def test_every_warning_says_what_to_do(ledger):
    urls = Urls(path("below/", include((ledgersite.urlpatterns, "site"))))
    with override_settings(ROOT_URLCONF=urls):
        messages = list(check_views(conf.current()))
    assert [message.id for message in messages] == ["zklock.W005"]
    assert "of 4 locked handlers" in messages[-1].msg
    assert all(message.hint and isinstance(message, checks.Warning) for message in messages)


# --- policies ---------------------------------------------------------------------------------------------------------


POLICIES = {"Celery task": ["wait", "retry", "skip", "raise"], "function": ["raise", "skip"]}
DEFAULT = {"Celery task": "retry", "function": "raise"}
ALL = sorted(set().union(*POLICIES.values()))
URL = {"URL": "zk://127.0.0.1:1"}

each_kind = pytest.mark.parametrize("kind", POLICIES)
each_policy = pytest.mark.parametrize("policy", ALL)


def policy_of(kind, name="k", **options):
    def work(*args):
        return HttpResponse()

    wrapper = zk_locked(name, **options)(work)
    if kind == "function":
        return wrapper.zk_locked.context_of((), {}).options["on_conflict"]
    app = Celery(set_as_current=False)
    _task_stack.push(app.task(name="task", shared=False)(wrapper))
    try:
        return wrapper.zk_locked.context_of((), {}).options["on_conflict"]
    finally:
        _task_stack.pop()
        app.close()


@each_kind
@each_policy
def test_a_policy_of_another_kind_of_function_is_refused(kind, policy):
    entry = {**URL, "LOCKS": {"entry": {"path": "k", "on_conflict": policy}}}
    with override_settings(ZKLOCK=entry):
        if policy in POLICIES[kind]:
            assert policy_of(kind, on_conflict=policy) == policy_of(kind, "entry") == policy
            return
        for name, options in (("k", {"on_conflict": policy}), ("entry", {})):
            with pytest.raises(
                ImproperlyConfigured, match=f'has on_conflict="{policy}".*{POLICIES[kind][0]}'
            ) as caught:
                policy_of(kind, name, **options)
            assert str(caught.value).startswith(f"The {kind} ")
        assert policy_of(kind, "entry", on_conflict="raise") == "raise"


@each_kind
@each_policy
def test_a_policy_in_the_defaults_counts_for_the_functions_that_can_have_it(kind, policy):
    with override_settings(ZKLOCK={**URL, "DEFAULTS": {"on_conflict": policy}}):
        assert policy_of(kind) == (policy if policy in POLICIES[kind] else DEFAULT[kind])


def test_the_system_check_names_views_with_a_wrong_policy():
    @zk_locked("k", on_conflict="wait")
    def function(request):
        return HttpResponse()

    @zk_locked("k", on_conflict="raise")
    def patient(request):
        return HttpResponse()

    class Handler(View):
        @zk_locked("k", on_conflict="retry")
        def get(self, request):
            return HttpResponse()

    # A skipped view would return None.
    patterns = (path("a", function), path("b", patient), path("c", Handler.as_view()))
    with override_settings(ZKLOCK=URL, ROOT_URLCONF=patterns):
        problems = list(check_views(conf.current()))
    assert [problem.id for problem in problems] == ["zklock.E019"] * 2
    assert "wait" in problems[0].msg
    assert "Handler.get" in problems[1].msg


def test_the_checks_are_registered_once_however_often_the_app_is_ready():
    """A test that changes INSTALLED_APPS makes Django call `ready` again."""
    before = len(checks.registry.registry.get_checks(include_deployment_checks=True))
    apps.get_app_config("zklock").ready()
    assert len(checks.registry.registry.get_checks(include_deployment_checks=True)) == before
