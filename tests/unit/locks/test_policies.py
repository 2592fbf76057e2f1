"""Each kind of function has its own values of `on_conflict`: a Celery task, and any other function."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery
from celery._state import _task_stack  # type: ignore[attr-defined]
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest, HttpResponse
from django.test import override_settings
from django.urls import path
from django.views import View

from django_zklock import zk_locked
from django_zklock.checks import check_views

POLICIES = {
    "Celery task": ["wait", "retry", "coalesce", "skip", "raise"],
    "function": ["raise", "skip"],
}
DEFAULT = {"Celery task": "retry", "function": "raise"}
ALL = sorted(set().union(*POLICIES.values()))
URL = {"URL": "zk://127.0.0.1:1"}

each_kind = pytest.mark.parametrize("kind", POLICIES)
each_policy = pytest.mark.parametrize("policy", ALL)


def policy_of(kind: str, name: str = "k", **options: Any) -> Any:
    def work(*args: Any) -> HttpResponse:
        return HttpResponse()

    wrapper: Any = zk_locked(name, **options)(work)
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
def test_a_policy_of_another_kind_of_function_is_refused(kind: str, policy: str) -> None:
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
def test_a_policy_in_the_defaults_counts_for_the_functions_that_can_have_it(kind: str, policy: str) -> None:
    with override_settings(ZKLOCK={**URL, "DEFAULTS": {"on_conflict": policy}}):
        assert policy_of(kind) == (policy if policy in POLICIES[kind] else DEFAULT[kind])


def test_the_system_check_names_views_with_a_wrong_policy() -> None:
    @zk_locked("k", on_conflict="coalesce")
    def function(request: HttpRequest) -> HttpResponse:
        return HttpResponse()

    @zk_locked("k", on_conflict="raise")
    def patient(request: HttpRequest) -> HttpResponse:
        return HttpResponse()

    class Handler(View):
        @zk_locked("k", on_conflict="retry")
        def get(self, request: HttpRequest) -> HttpResponse:
            return HttpResponse()

    patterns = (path("a", function), path("b", patient), path("c", Handler.as_view()))  # type: ignore[arg-type]  # a skipped view would return None
    with override_settings(ZKLOCK=URL, ROOT_URLCONF=patterns):
        problems = check_views()
    assert [problem.id for problem in problems] == ["zklock.E019"] * 2
    assert "coalesce" in problems[0].msg
    assert "Handler.get" in problems[1].msg
