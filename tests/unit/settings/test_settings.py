"""`settings.ZKLOCK`: what it may say, what comes of it, and what is said of what it may not say."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.test import override_settings
from hypothesis import given
from hypothesis import strategies as st

from django_zklock import conf
from django_zklock.conf import Config, Tls
from django_zklock.conf.errors import Problem
from django_zklock.conf.options import UNSET, LockOptions, given_options

URL = "zk://h1,h2:2182/app"


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    conf.forget()
    yield
    conf.forget()


def config(url: str = URL, /, **keys: Any) -> Config:
    with override_settings(ZKLOCK={"URL": url, **keys}):
        conf.forget()
        return conf.current()


def ids(**keys: object) -> list[str]:
    return [problem.id for problem in conf.problems({"URL": URL, **keys})]


def only_problem(**keys: object) -> Problem:
    (problem,) = conf.problems({"URL": URL, **keys})
    return problem


# --- the whole -------------------------------------------------------------------------------------------------------


def test_url_is_enough() -> None:
    """All but the URL has a default."""
    assert config() == Config(
        hosts=(("h1", 2181), ("h2", 2182)),
        base="/app/zklock",
        session_timeout=20.0,
        connect_timeout=5.0,
        auth=(),
        acl="open",
        tls=None,
        defaults=LockOptions(),
        locks={},
        admin_links={},
    )


def test_every_key_arrives() -> None:
    """Each key of the dict has its place in the configuration."""
    assert config(
        ROOT="/locks",
        SESSION_TIMEOUT=30,
        CONNECT_TIMEOUT=timedelta(seconds=2),
        AUTH="user:secret",
        ACL=[("world", "anyone", "r"), ("digest", "user:hash", "cdrwa")],
        TLS={"CA": Path("/ca.pem"), "CERT": "/c.pem", "KEY": "/k.pem", "KEY_PASSWORD": "pw", "CHECK_HOSTNAME": False},
        DEFAULTS={"timeout": None, "reentrant": False},
        LOCKS={"stock": {"path": "stock/{sku}", "timeout": timedelta(minutes=1), "on_conflict": "retry",
                         "abort_on": "lost", "grace": 2, "reentrant": True}},
        ADMIN_LINKS={"Flower": "https://flower/task/{id}"},
    ) == Config(
        hosts=(("h1", 2181), ("h2", 2182)),
        base="/app/locks",
        session_timeout=30.0,
        connect_timeout=2.0,
        auth=(("digest", "user:secret"),),
        acl=(("world", "anyone", "r"), ("digest", "user:hash", "cdrwa")),
        tls=Tls(ca="/ca.pem", cert="/c.pem", key="/k.pem", key_password="pw", check_hostname=False),
        defaults=LockOptions(timeout=None, reentrant=False),
        locks={"stock": LockOptions(path="stock/{sku}", timeout=60.0, on_conflict="retry", abort_on="lost", grace=2.0,
                                    reentrant=True)},
        admin_links={"Flower": "https://flower/task/{id}"},
    )  # fmt: skip


def test_none_counts_as_not_given() -> None:
    """A key that an environment variable leaves empty has its default."""
    names = ("ROOT", "SESSION_TIMEOUT", "CONNECT_TIMEOUT", "AUTH", "ACL", "TLS", "DEFAULTS", "LOCKS", "ADMIN_LINKS")
    assert config(**dict.fromkeys(names)) == config()


def test_configuration_is_built_once_and_dropped_on_request() -> None:
    """The settings are read when first asked for, and again only after `forget()`."""
    with override_settings(ZKLOCK={"URL": URL}):
        first = conf.current()
        assert conf.current() is first
        conf.forget()
        assert conf.current() == first
        assert conf.current() is not first


def test_configuration_cannot_be_changed() -> None:
    """What one part of the program does with the configuration, no other part sees."""
    raw: dict[str, Any] = {"stock": {"path": "stock"}}
    built = config(LOCKS=raw)
    raw["other"] = {"path": "other"}
    assert list(built.locks) == ["stock"]
    with pytest.raises(TypeError):
        built.locks["other"] = LockOptions()  # type: ignore[index]
    with pytest.raises(dataclasses.FrozenInstanceError):
        built.base = "/"  # type: ignore[misc]


@pytest.mark.parametrize("raw", [None, "zk://h1", ["zk://h1"], 3])
def test_anything_but_a_dict_is_refused(raw: object) -> None:
    """Without a dict there is one problem, and it shows what is wanted."""
    (problem,) = conf.problems(raw)
    assert problem.id == "E001"
    assert "URL" in str(problem.hint)


def test_first_use_names_all_problems_in_the_words_of_the_checks() -> None:
    """Who does not run the checks learns the same, at once."""
    raw = {"URL": "zk://", "ROOT": "locks", "SESSION_TIMEOUT": 0, "LOCK": {}}
    with override_settings(ZKLOCK=raw), pytest.raises(ImproperlyConfigured) as caught:
        conf.current()
    problems = conf.problems(raw)
    assert [problem.id for problem in problems] == ["E002", "E003", "E004", "E005"]
    for problem in problems:
        assert problem.message in str(caught.value)
        assert str(problem.hint) in str(caught.value)


def test_settings_without_zklock_are_refused() -> None:
    """A project that forgot the setting is told its name."""
    with override_settings():
        from django.conf import settings

        del settings.ZKLOCK
        with pytest.raises(ImproperlyConfigured, match=r"settings\.ZKLOCK is missing"):
            conf.current()


WILD = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.binary(max_size=3)
    | st.timedeltas(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(
            st.sampled_from(["path", "timeout", "CA", "KEY", "grace", "x"]) | st.integers(), inner, max_size=3
        )
    ),
    max_leaves=8,
)


@given(
    st.dictionaries(
        st.sampled_from([*conf.settings._KEYS, *conf.settings._DICTS]) | st.text(max_size=5) | st.integers(), WILD
    )
)
def test_no_value_whatever_breaks_the_validator(raw: dict[Any, Any]) -> None:
    """A check reports, and says what to do; it never ends in a traceback, whatever the settings hold."""
    assert all(problem.message and problem.hint for problem in conf.problems(raw))


# --- keys ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "suggestion"),
    [
        ({"SESION_TIMEOUT": 3}, "SESSION_TIMEOUT"),
        ({"root": "/x"}, "ROOT"),
        ({"HOSTS": "zk1:2181"}, "URL"),
        ({"DEFAULTS": {"timout": 3}}, "timeout"),  # codespell:ignore
        ({"LOCKS": {"a": {"path": "a", "ABORT_ON": "lost"}}}, "abort_on"),
        ({"TLS": {"cert": "x"}}, "CERT"),
        ({"URL": "zk://h?sesion_timeout=3"}, "session_timeout"),
    ],
)
def test_unknown_key_gets_a_suggestion(keys: dict[str, object], suggestion: str) -> None:
    """At every level, a misspelt key is an error that knows the right one."""
    problem = only_problem(**keys)
    assert (problem.id, problem.hint) == ("E002", f'Did you mean "{suggestion}"?')


def test_key_like_no_other_gets_the_list() -> None:
    """Where no key is near, all are named."""
    assert "SESSION_TIMEOUT" in str(only_problem(XYZ=1).hint)


# --- what is refused -------------------------------------------------------------------------------------------------

REFUSED: list[tuple[str, str, list[object]]] = [
    ("E002", "DEFAULTS", [{"path": "x"}]),  # one path for all locks would make them one lock
    ("E003", "URL", [None, "", 3, "zk://", "zk://h?session_timeout=3&session_timeout=4"]),
    ("E004", "ROOT", ["zklock", "/a//b", "/a/../b", "/zookeeper", "/zookeeper/locks", "/a\x00", 3]),
    ("E005", "SESSION_TIMEOUT", [0, -1, "", "7s", "nan", "inf", math.nan, 1e9, True, [], timedelta(0)]),
    ("E005", "CONNECT_TIMEOUT", [0, -1, "7s", math.nan]),
    # Credentials are pairs of texts that can be sent, and a digest has a user.
    ("E006", "AUTH", ["user", "user:", ":pw", ("digest", "user:pw"), [("digest", "user")], [("", "x")], {"a": "b"}, 3]),
    ("E006", "AUTH", [[("a", "b", "c")], [("x", "\ud800")], [("x", b"y")]]),
    # "creator" needs somebody who creates.
    (
        "E007",
        "ACL",
        ["all", "creator", [], 3, {}, [("world", "anyone")], [("world", "anyone", "x")], [("world", "", "r")]],
    ),
    ("E007", "ACL", [[("world", "", "r")], ["abc"]]),
    ("E008", "TLS", ["ca.pem", 1, {"CA": 3}, {"KEY": "k"}, {"KEY_PASSWORD": "x"}, {"CERT": "c", "KEY_PASSWORD": 3}]),
    ("E008", "TLS", [{"CHECK_HOSTNAME": "no"}]),
    ("E010", "LOCKS", [[], {"": {"path": "a"}}, {3: {"path": "a"}}, {"a": {}}, {"a": {"path": None}}]),
    ("E010", "LOCKS", [{"a": {"path": path}} for path in ("", "a/../b", "a/{b", "a/{b._c}")]),
]


@pytest.mark.parametrize(
    ("id", "key", "value"), [(id, key, value) for id, key, values in REFUSED for value in values], ids=repr
)
def test_a_value_without_a_meaning_is_refused(id: str, key: str, value: object) -> None:
    """Each problem has its number."""
    assert ids(**{key: value}) == [id]


# --- where -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("chroot", "root", "base"),
    [("", "/zklock", "/zklock"), ("/", "/a/b/", "/a/b"), ("/app", "/", "/app"), ("/app/", "/locks", "/app/locks")],
)
def test_base_joins_chroot_and_root(chroot: str, root: str, base: str) -> None:
    """The locks are below the root, which is below the chroot."""
    assert config(f"zk://h{chroot}", ROOT=root).base == base


def test_locks_need_a_path_of_their_own() -> None:
    """They are not put among all else there is in the ensemble."""
    assert [problem.id for problem in conf.problems({"URL": "zk://h", "ROOT": "/"})] == ["E004"]


# --- how long --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [7, 7.0, "7", " 7.0 ", timedelta(seconds=7)])
def test_times_are_numbers_texts_of_numbers_or_timedeltas(value: object) -> None:
    """What an environment variable holds is as good as a number."""
    assert config(SESSION_TIMEOUT=value).session_timeout == 7.0
    assert config(CONNECT_TIMEOUT=value).connect_timeout == 7.0


def test_query_of_the_url_sets_times_and_the_dict_wins() -> None:
    """One environment variable can say it all; what is written out in the settings has the last word."""
    url = "zk://h?session_timeout=8&connect_timeout=2.5"
    assert (config(url).session_timeout, config(url).connect_timeout) == (8.0, 2.5)
    assert config(url, SESSION_TIMEOUT=9).session_timeout == 9.0
    assert only_problem(URL="zk://h?session_timeout=soon").id == "E005"


# --- who -------------------------------------------------------------------------------------------------------------


def test_credentials_come_from_the_url_or_from_auth_which_wins() -> None:
    """A user and a password in the URL do for the usual scheme; AUTH is for all others, and stronger."""
    url = "zk://us%65r:p%40ss@h"
    assert config(url).auth == (("digest", "user:p@ss"),)
    assert config(url, AUTH=[("super", "x"), ["digest", "a:b"]]).auth == (("super", "x"), ("digest", "a:b"))


def test_znodes_are_their_creators_where_there_are_credentials() -> None:
    """Who gives credentials means to be the only one; who gives none cannot be."""
    assert config().acl == "open"
    assert config("zk://user:pw@h").acl == "creator"
    assert config("zk://user:pw@h", ACL="open").acl == "open"
    assert config("zk+tls://h", TLS={"CERT": "c.pem"}, ACL="creator").acl == "creator"


@pytest.mark.parametrize(
    ("url", "tls", "built"),
    [
        ("zk://h", None, None),
        ("zk://h", False, None),
        ("zk://h", True, Tls()),
        ("zk://h", {}, Tls()),
        ("zk+tls://h", None, Tls()),
        ("zk+tls://h", {"CA": "ca.pem", "CERT": None}, Tls(ca="ca.pem")),
    ],
)
def test_tls_is_turned_on_by_url_or_dict_and_verifies(url: str, tls: object, built: Tls | None) -> None:
    """Either turns TLS on, and neither turns the check of the other side off."""
    assert config(url, TLS=tls).tls == built


def test_tls_may_not_be_turned_off_behind_the_back_of_the_url() -> None:
    """Who wrote zk+tls:// is not sent in plain text."""
    assert ids(URL="zk+tls://h", TLS=False) == ["E008"]


@given(
    url=st.sampled_from(["zk://u:SECRET@h", "zk://u:SECRET@", "zk://u:SECRET", "zk://SECRET@h", "x://u:SECRET@h"]),
    auth=st.sampled_from(
        [None, "SECRET", "u:SECRET", ["SECRET"], [("x", "SECRET", 1)], {"SECRET": 1}, [["digest", "SECRET"]]]
    ),
    acl=st.sampled_from([None, "SECRET", [("digest", "u:SECRET", "x")], [("digest", "u:SECRET", "r")]]),
    tls=st.sampled_from([None, "SECRET", {"KEY_PASSWORD": "SECRET"}, {"KEY_PASSWORD": ["SECRET"], "CERT": "c"}]),
)
def test_credentials_show_nowhere(url: str, auth: object, acl: object, tls: object) -> None:
    """Neither a problem, nor the exception, nor the configuration repeats what is secret."""
    raw = {"URL": url, "AUTH": auth, "ACL": acl, "TLS": tls}
    conf.forget()
    with override_settings(ZKLOCK=raw):
        try:
            shown = repr(conf.current()) + conf.current().url_for_log
        except ImproperlyConfigured as error:
            shown = str(error)
    assert "SECRET" not in shown + repr(conf.problems(raw))


def test_url_for_log_can_be_read_as_a_url() -> None:
    """A log line says where the locks are, in the words of the settings."""
    assert config("zk+tls://user:pw@h1,[::1]:2182/app").url_for_log == "zk+tls://h1:2181,[::1]:2182/app/zklock"


# --- the locks -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("timeout", -1), ("timeout", "5"), ("timeout", True), ("timeout", math.inf), ("grace", None), ("grace", -0.1),
        ("on_conflict", "queue"), ("on_conflict", None), ("on_conflict", []), ("abort_on", "always"), ("reentrant", 1),
        ("compat", "curator"), ("atomic", 1), ("atomic", [""]), ("atomic", {"a": 1}), ("release_on", "block"),
        ("max_conflicts", -1), ("max_conflicts", True), ("max_conflicts", "3"), ("skip_value", object()),
        ("on_lost", "skip"), ("max_hold", 0), ("max_hold", "5"), ("warn_after", 0), ("warn_after", -1),
        ("min_hold", None), ("min_hold", -1), ("min_hold", 8 * 86400),
        ("linger", None), ("linger", -1), ("linger", "5"), ("linger", True), ("linger", math.inf),
    ],
)  # fmt: skip
def test_option_without_a_meaning_is_refused(option: str, value: object) -> None:
    """An option is refused where it is given, among the defaults and for one lock alike."""
    problem = only_problem(DEFAULTS={option: value})
    assert (problem.id, option in problem.message) == ("E009", True)
    problem = only_problem(LOCKS={"stock": {"path": "stock", option: value}})
    assert (problem.id, f'["stock"]["{option}"]' in problem.message) == ("E009", True)


def test_locks_that_linger_are_bounded() -> None:
    """By a whole number; without one, by a thousand."""
    assert config().max_lingering == 1000
    assert (config(MAX_LINGERING=0).max_lingering, config(MAX_LINGERING=5).max_lingering) == (0, 5)
    for value in (-1, 1.5, "5", True, math.inf):
        problem = only_problem(MAX_LINGERING=value)
        assert (problem.id, repr(value) in problem.message) == ("E015", True)


def test_events_are_kept_for_a_number_of_days() -> None:
    """Seven without the setting; parts of a day are possible."""
    assert (config().event_days, config(EVENT_DAYS=0.5).event_days) == (7.0, 0.5)
    for value in (0, -1, "5", True, math.inf, math.nan):
        problem = only_problem(EVENT_DAYS=value)
        assert (problem.id, repr(value) in problem.message) == ("E017", True)


def test_a_skipped_task_may_return_none() -> None:
    """None is a value like any other, and another thing than none given."""
    assert config(DEFAULTS={"skip_value": None}).options_for("x").skip_value is None
    assert config(LOCKS={"x": {"path": "x", "skip_value": None}}, DEFAULTS={"skip_value": 1}).options_for(
        "x"
    ) == LockOptions(path="x", skip_value=None)
    assert config().options_for("x").skip_value is UNSET


def test_lock_or_defaults_that_are_no_dict_are_refused() -> None:
    """A lock that is only a path is told what to be."""
    assert ids(LOCKS={"a": "a/{b}"}) == ["E009", "E010"]
    assert ids(DEFAULTS=5) == ["E009"]


def test_options_of_a_lock_come_before_the_defaults() -> None:
    """What is said of one lock counts more than what is said of all; None is something said."""
    built = config(
        DEFAULTS={"timeout": 3, "abort_on": "lost"}, LOCKS={"stock": {"path": "stock/{sku}", "timeout": None}}
    )
    assert built.options_for("stock") == LockOptions(path="stock/{sku}", timeout=None, abort_on="lost")
    assert built.options_for("stock").grace is UNSET


def test_name_that_is_not_listed_is_its_own_path() -> None:
    """A lock needs no settings."""
    built = config(DEFAULTS={"timeout": 3})
    assert built.options_for("order/{pk}") == LockOptions(timeout=3.0)


# --- signed tokens ---------------------------------------------------------------------------------------------------


def test_keys_of_tokens_are_long_texts_in_a_list() -> None:
    """What would sign with a single character, or with nothing, is an error that quotes no key."""
    assert ids(TOKEN_KEYS=["k" * 32, "l" * 60]) == []
    for keys in ("k" * 32, [], ["k" * 31], ["k" * 32, ""], [b"k" * 32], {"k" * 32: 1}):
        problem = only_problem(TOKEN_KEYS=keys)
        assert problem.id == "E011"
        assert "kkk" not in str(problem)


@pytest.mark.parametrize(
    ("raw", "path"),
    [
        (None, "stock"),
        ({"TOKEN_KEYS": ["k" * 32]}, "stock"),
        ({"LOCKS": {"stock": {"path": "stock/{sku}"}}}, "stock/{sku}"),
        ({"LOCKS": {"stock": "no dict"}}, "stock"),
        ({"LOCKS": 7}, "stock"),
    ],
)
def test_path_of_a_lock_is_known_without_an_ensemble(raw: object, path: str) -> None:
    """Who receives tokens may share the names of the locks, or have no settings at all."""
    with override_settings(ZKLOCK=raw):
        assert conf.path_for("stock") == path


@pytest.mark.parametrize(
    ("given", "aliases"), [(True, ("default",)), (False, ()), ("ledger", ("ledger",)), (["b", "a", "b"], ("b", "a"))]
)
def test_databases_of_a_block_in_their_order(given: object, aliases: tuple[str, ...]) -> None:
    """`atomic` is yes, no, a database or several; False overrides what the settings say."""
    options = given_options({"atomic": given})
    assert options.atomic == aliases
    assert options.merged_over(LockOptions(atomic=("x",))).atomic == aliases
    assert LockOptions().merged_over(options).atomic == aliases


def test_the_options_of_a_key_are_those_of_the_lock_that_has_it() -> None:
    """By its path; the defaults, if no lock in the settings does."""
    built = config(
        LOCKS={"rates": {"path": "rates/{day}", "kind": "read"}, "stock": {"path": "stock", "compat": None}},
        DEFAULTS={"kind": "write", "compat": "kazoo"},
    )
    assert (built.options_of_key("rates/monday").kind, built.options_of_key("rates/monday").compat) == (
        "read",
        "kazoo",
    )
    assert (built.options_of_key("stock").kind, built.options_of_key("stock").compat) == ("write", None)
    assert (built.options_of_key("stock/7").kind, built.options_of_key("stock/7").compat) == ("write", "kazoo")
