"""The configuration that `settings.ZKLOCK` gives, and the problems that are reported."""

import dataclasses
import math
from datetime import timedelta
from pathlib import Path

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.test import override_settings
from hypothesis import given, settings
from hypothesis import strategies as st

from django_zklock import conf, zk_lock
from django_zklock.apps import session_options
from django_zklock.conf import Config
from django_zklock.conf.options import given_options, over_defaults
from django_zklock.core.zk.options import SessionOptions, TlsOptions

URL = "zk://h1,h2:2182/app"
KEYS = {*conf.settings._KEYS, *conf.settings._DICTS}


@pytest.fixture(autouse=True)
def _fresh():
    conf.forget()
    yield
    conf.forget()


def config(url=URL, /, **keys):
    with override_settings(ZKLOCK={"URL": url, **keys}):
        conf.forget()
        return conf.current()


def ids(**keys):
    return [problem.id for problem in conf.problems({"URL": URL, **keys})]


def only_problem(**keys):
    (problem,) = conf.problems({"URL": URL, **keys})
    return problem


def test_only_the_url_is_required():
    assert config() == Config(
        hosts=(("h1", 2181), ("h2", 2182)),
        base="/app/zklock",
        session_timeout=20.0,
        connect_timeout=5.0,
        auth=(),
        acl="open",
        tls=None,
        defaults={},
        locks={},
        admin_links={},
    )


def test_every_setting_reaches_the_configuration():
    assert config(
        ROOT="/locks",
        SESSION_TIMEOUT=30,
        CONNECT_TIMEOUT=timedelta(seconds=2),
        AUTH="user:secret",
        ACL=[("world", "anyone", "r"), ("digest", "user:hash", "cdrwa")],
        TLS={"CA": Path("/ca.pem"), "CERT": "/c.pem", "KEY": "/k.pem", "KEY_PASSWORD": "pw", "CHECK_HOSTNAME": False},
        DEFAULTS={"timeout": None, "reentrant": False},
        LOCKS={
            "stock": {
                "path": "stock/{sku}",
                "timeout": timedelta(minutes=1),
                "on_conflict": "retry",
                "abort_on": "lost",
                "grace": 2,
                "reentrant": True,
            }
        },
        ADMIN_LINKS={"Flower": "https://flower/task/{id}"},
        STRICT=True,
        JUTE_MAXBUFFER=0x3FFFFF,
        MAX_LINGERING=0,
        MAX_METRIC_LOCKS=50,
        EVENT_DAYS=0.5,
    ) == Config(
        hosts=(("h1", 2181), ("h2", 2182)),
        base="/app/locks",
        session_timeout=30.0,
        connect_timeout=2.0,
        auth=(("digest", "user:secret"),),
        acl=(("world", "anyone", "r"), ("digest", "user:hash", "cdrwa")),
        tls=TlsOptions(ca="/ca.pem", cert="/c.pem", key="/k.pem", key_password="pw", check_hostname=False),
        defaults={"timeout": None, "reentrant": False},
        locks={
            "stock": {
                "path": "stock/{sku}",
                "timeout": 60.0,
                "on_conflict": "retry",
                "abort_on": "lost",
                "grace": 2.0,
                "reentrant": True,
            }
        },
        admin_links={"Flower": "https://flower/task/{id}"},
        strict=True,
        jute_maxbuffer=4194303,
        max_lingering=0,
        max_metric_locks=50,
        event_days=0.5,
    )


def test_none_is_the_default_of_all_keys_but_of_the_search_for_deadlocks():
    assert config(**dict.fromkeys(KEYS - {"URL", "DEADLOCK_TIMEOUT"})) == config()
    assert (config().deadlock_timeout, config(DEADLOCK_TIMEOUT=None).deadlock_timeout) == (1.0, None)


def test_configuration_cannot_be_changed():
    raw = {"stock": {"path": "stock"}}
    built = config(LOCKS=raw)
    raw["other"] = {"path": "other"}
    assert list(built.locks) == ["stock"]
    with pytest.raises(TypeError):
        built.locks["other"] = {}
    with pytest.raises(dataclasses.FrozenInstanceError):
        built.base = "/"


@pytest.mark.parametrize("raw", [None, "zk://h1", ["zk://h1"], 3])
def test_anything_but_a_dict_is_refused(raw):
    (problem,) = conf.problems(raw)
    assert problem.id == "E001"
    assert "URL" in str(problem.hint)


def test_first_use_names_all_problems_in_the_words_of_the_checks():
    raw = {"URL": "zk://", "ROOT": "locks", "SESSION_TIMEOUT": 0, "LOCK": {}}
    with override_settings(ZKLOCK=raw), pytest.raises(ImproperlyConfigured) as caught:
        conf.current()
    problems = conf.problems(raw)
    assert [problem.id for problem in problems] == ["E002", "E003", "E004", "E005"]
    for problem in problems:
        assert problem.message in str(caught.value)
        assert str(problem.hint) in str(caught.value)


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


@settings(max_examples=50)
@given(st.dictionaries(st.sampled_from(sorted(KEYS)) | st.text(max_size=5) | st.integers(), WILD))
def test_no_value_breaks_the_validator(raw):
    assert all(problem.message and problem.hint for problem in conf.problems(raw))


@pytest.mark.parametrize(
    ("keys", "suggestion"),
    [
        ({"SESION_TIMEOUT": 3}, "SESSION_TIMEOUT"),
        ({"root": "/x"}, "ROOT"),
        ({"DEFAULTS": {"timout": 3}}, "timeout"),  # codespell:ignore
        ({"LOCKS": {"a": {"path": "a", "ABORT_ON": "lost"}}}, "abort_on"),
        ({"TLS": {"cert": "x"}}, "CERT"),
        ({"URL": "zk://h?sesion_timeout=3"}, "session_timeout"),
    ],
)
def test_unknown_key_gets_a_suggestion(keys, suggestion):
    problem = only_problem(**keys)
    assert (problem.id, problem.hint) == ("E002", f'Did you mean "{suggestion}"?')
    assert "SESSION_TIMEOUT" in str(only_problem(XYZ=1).hint)


REFUSED = [
    ("E002", "DEFAULTS", [{"path": "x"}]),  # one path for all locks would make them one lock
    ("E003", "URL", [None, "", 3, "zk://"]),
    ("E004", "ROOT", ["zklock", "/a//b", "/a/../b", "/zookeeper", "/zookeeper/locks", "/a\x00", 3]),
    ("E005", "SESSION_TIMEOUT", [0, -1, "", "7s", "nan", "inf", math.nan, 1e9, True, [], timedelta(0)]),
    ("E005", "CONNECT_TIMEOUT", [0, -1, "7s", math.nan]),
    ("E005", "DEADLOCK_TIMEOUT", [0, -1, "7s", math.nan]),
    # Credentials are pairs of texts that can be sent, and a digest has a user.
    ("E006", "AUTH", ["user", "user:", ":pw", ("digest", "user:pw"), [("digest", "user")], [("", "x")], {"a": "b"}, 3]),
    ("E006", "AUTH", [[("a", "b", "c")], [("x", "\ud800")], [("x", b"y")]]),
    # "creator" needs credentials.
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
    ("E012", "ADMIN_LINKS", [3, {"a": 3}, {"a": "https://{host}/"}, {"a": "//host"}, {"a": "/{id!r}"}]),
    ("E014", "STRICT", [0, "yes"]),
    ("E014", "REAL_IN_TESTS", [1, "no"]),
    ("E022", "LOCK_ORDER", ["off", True, [("a",)], [("a", 1)], [("a", "")], {"a": "b"}, [("a", "b/{c")]]),
    ("E015", "MAX_LINGERING", [-1, 1.5, "5", True, math.inf]),
    ("E020", "MAX_METRIC_LOCKS", [-1, "5", 1.5, True]),
    ("E021", "JUTE_MAXBUFFER", [0, 131071, 2**31, -1, 1e6, "1M", "0xfffff", "9" * 5000, True, math.inf]),
    ("E017", "EVENT_DAYS", [0, -1, "5", True, math.inf, math.nan]),
]


@pytest.mark.parametrize(("id", "key", "values"), REFUSED)
def test_an_invalid_value_of_a_key_is_refused(id, key, values):
    assert [(value, ids(**{key: value})) for value in values] == [(value, [id]) for value in values]


@pytest.mark.parametrize(
    ("keys", "id"),
    [
        ({"URL": "zk://h", "ROOT": "/"}, "E004"),  # the list of locks would contain the znodes of other programs
        ({"URL": "zk://h?session_timeout=soon"}, "E005"),
    ],
)
def test_a_value_that_contradicts_the_url_or_is_in_it_is_refused(keys, id):
    assert only_problem(**keys).id == id


@pytest.mark.parametrize(
    ("chroot", "root", "base"),
    [("", "/zklock", "/zklock"), ("/", "/a/b/", "/a/b"), ("/app", "/", "/app"), ("/app/", "/locks", "/app/locks")],
)
def test_base_joins_chroot_and_root(chroot, root, base):
    assert config(f"zk://h{chroot}", ROOT=root).base == base


@pytest.mark.parametrize("value", [7, 7.0, "7", " 7.0 ", timedelta(seconds=7)])
def test_times_are_numbers_texts_of_numbers_or_timedeltas(value):
    assert config(SESSION_TIMEOUT=value).session_timeout == 7.0
    assert config(CONNECT_TIMEOUT=value).connect_timeout == 7.0


def test_query_of_the_url_sets_times_and_the_dict_wins():
    """A single environment variable can have all; the keys of the dict take precedence."""
    url = "zk://h?session_timeout=8&connect_timeout=2.5"
    assert (config(url).session_timeout, config(url).connect_timeout) == (8.0, 2.5)
    assert config(url, SESSION_TIMEOUT=9).session_timeout == 9.0


def test_credentials_of_the_url_or_of_auth_guard_the_znodes_and_are_not_logged():
    url = "zk://us%65r:p%40ss@h"
    assert config(url).auth == (("digest", "user:p@ss"),)
    assert config(url, AUTH=[("super", "x"), ["digest", "a:b"]]).auth == (("super", "x"), ("digest", "a:b"))
    assert config().acl == "open"
    assert config("zk://user:pw@h").acl == "creator"
    assert config("zk://user:pw@h", ACL="open").acl == "open"
    assert config("zk+tls://h", TLS={"CERT": "c.pem"}, ACL="creator").acl == "creator"
    assert config("zk+tls://user:pw@h1,[::1]:2182/app").url_for_log == "zk+tls://h1:2181,[::1]:2182/app/zklock"


@pytest.mark.parametrize(
    ("url", "tls", "built"),
    [
        ("zk://h", None, None),
        ("zk://h", False, None),
        ("zk://h", True, TlsOptions()),
        ("zk://h", {}, TlsOptions()),
        ("zk+tls://h", None, TlsOptions()),
        ("zk+tls://h", {"CA": "ca.pem", "CERT": None}, TlsOptions(ca="ca.pem")),
    ],
)
def test_tls_is_turned_on_by_url_or_dict_and_verifies(url, tls, built):
    assert config(url, TLS=tls).tls == built


@given(
    url=st.sampled_from(["zk://u:SECRET@h", "zk://u:SECRET@", "zk://u:SECRET", "zk://SECRET@h", "x://u:SECRET@h"]),
    auth=st.sampled_from(
        [None, "SECRET", "u:SECRET", ["SECRET"], [("x", "SECRET", 1)], {"SECRET": 1}, [["digest", "SECRET"]]]
    ),
    acl=st.sampled_from([None, "SECRET", [("digest", "u:SECRET", "x")], [("digest", "u:SECRET", "r")]]),
    tls=st.sampled_from([None, "SECRET", {"KEY_PASSWORD": "SECRET"}, {"KEY_PASSWORD": ["SECRET"], "CERT": "c"}]),
)
def test_credentials_appear_in_no_text(url, auth, acl, tls):
    raw = {"URL": url, "AUTH": auth, "ACL": acl, "TLS": tls}
    conf.forget()
    with override_settings(ZKLOCK=raw):
        try:
            shown = repr(conf.current()) + conf.current().url_for_log
        except ImproperlyConfigured as error:
            shown = str(error)
    assert "SECRET" not in shown + repr(conf.problems(raw))


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("timeout", -1),
        ("timeout", "5"),
        ("timeout", True),
        ("timeout", math.inf),
        ("grace", "5"),
        ("grace", -0.1),
        ("on_conflict", "queue"),
        ("on_conflict", None),
        ("on_conflict", []),
        ("abort_on", "always"),
        ("reentrant", 1),
        ("compat", "curator"),
        ("atomic", 1),
        ("atomic", [""]),
        ("atomic", {"a": 1}),
        ("release_on", "block"),
        ("max_conflicts", -1),
        ("max_conflicts", True),
        ("max_conflicts", "3"),
        ("skip_value", object()),
        ("on_lost", "skip"),
        ("max_hold", 0),
        ("max_hold", "5"),
        ("warn_after", 0),
        ("warn_after", -1),
        ("min_hold", None),
        ("min_hold", -1),
        ("min_hold", 8 * 86400),
        ("linger", None),
        ("linger", -1),
        ("linger", "5"),
        ("linger", True),
        ("linger", math.inf),
    ],
)
def test_an_invalid_value_of_an_option_is_refused(option, value):
    problem = only_problem(DEFAULTS={option: value})
    assert (problem.id, option in problem.message) == ("E009", True)
    problem = only_problem(LOCKS={"stock": {"path": "stock", option: value}})
    assert (problem.id, f'["stock"]["{option}"]' in problem.message) == ("E009", True)


def test_a_lock_and_the_defaults_must_be_dicts():
    assert ids(LOCKS={"a": "a/{b}"}) == ["E009", "E010"]
    assert ids(DEFAULTS=5) == ["E009"]


def test_options_of_a_lock_come_before_the_defaults():
    built = config(
        DEFAULTS={"timeout": 3, "abort_on": "lost", "skip_value": 1},
        LOCKS={"stock": {"path": "stock/{sku}", "timeout": None, "skip_value": None}},
    )
    entry = {"path": "stock/{sku}", "timeout": None, "abort_on": "lost", "skip_value": None}
    assert built.options_for("stock") == entry
    assert built.options_for("order/{pk}") == {"timeout": 3.0, "abort_on": "lost", "skip_value": 1}


@pytest.mark.parametrize(
    ("raw", "path"),
    [
        (None, "stock"),
        ({"STRICT": True}, "stock"),
        ({"LOCKS": {"stock": {"path": "stock/{sku}"}}}, "stock/{sku}"),
        ({"LOCKS": {"stock": "no dict"}}, "stock"),
        ({"LOCKS": 7}, "stock"),
    ],
)
def test_path_of_a_lock_is_known_without_an_ensemble(raw, path):
    """A receiver of signed tokens may use the names of the locks without a valid `ZKLOCK`."""
    with override_settings(ZKLOCK=raw):
        assert conf.path_for("stock") == path


@pytest.mark.parametrize(
    ("given", "aliases"), [(True, ("default",)), (False, ()), ("ledger", ("ledger",)), (["b", "a", "b"], ("b", "a"))]
)
def test_databases_of_a_block_in_their_order(given, aliases):
    options = given_options({"atomic": given})
    assert options["atomic"] == aliases
    assert over_defaults(options, {"atomic": ("x",)}) == over_defaults({}, options) == options


def test_a_key_has_the_options_of_the_entry_that_can_render_it():
    built = config(
        LOCKS={"rates": {"path": "rates/{day}", "kind": "read"}, "stock": {"path": "stock", "compat": None}},
        DEFAULTS={"kind": "write", "compat": "kazoo"},
    )
    options = built.options_of_key
    assert options("rates/monday") == {"path": "rates/{day}", "kind": "read", "compat": "kazoo"}
    assert options("stock") == {"path": "stock", "kind": "write", "compat": None}
    assert options("stock/7") == {"kind": "write", "compat": "kazoo"}


def test_changed_settings_are_seen():
    before = conf.current()
    lock = zk_lock("a")
    spec = lock.spec
    assert lock.spec is spec
    with override_settings(SECRET_KEY="other"):
        assert conf.current() is before
    with override_settings(ZKLOCK={"URL": "zk://h/other"}):
        assert conf.current().base == "/other/zklock"
        assert lock.spec.parent == "/other/zklock/a"
        assert session_options().tls is None
    assert conf.current() == before
    assert lock.spec == spec


def test_session_gets_all_that_the_settings_say():
    raw = {
        "URL": "zk+tls://user:pw@h1,[::1]:2182/app?session_timeout=9&connect_timeout=2",
        "TLS": {"CA": "ca", "CERT": "cert", "KEY": "key", "KEY_PASSWORD": "pw", "CHECK_HOSTNAME": False},
    }
    with override_settings(ZKLOCK=raw):
        assert session_options() == SessionOptions(
            hosts=(("h1", 2181), ("::1", 2182)),
            base="/app/zklock",
            session_timeout=9.0,
            connect_timeout=2.0,
            auth=(("digest", "user:pw"),),
            acl="creator",
            tls=TlsOptions(ca="ca", cert="cert", key="key", key_password="pw", check_hostname=False),
        )


# --- the order of locks -----------------------------------------------------------------------------------------------

ENTRIES = {"order": {"path": "order/{pk}"}, "stock": {"path": "stock/{sku}"}}


@pytest.mark.parametrize("name", ["stock", "stock/{pk}", "stock/7"])
def test_the_order_of_locks_names_entries_paths_or_keys(name):
    assert not ids(STRICT=True, LOCKS=ENTRIES, LOCK_ORDER=[("order", name), (name, name)])


@pytest.mark.parametrize("name", ["stok", "stocks/{sku}", "stock"])
def test_with_strict_the_order_of_locks_names_locks_that_exist(name):
    problem = only_problem(STRICT=True, LOCKS={"order": {"path": "order/{pk}"}}, LOCK_ORDER=[(name, "order")])
    assert (problem.id, f"has {name!r}, which is not an entry" in problem.message) == ("E022", True)


def test_a_misspelt_name_in_the_order_of_locks_has_a_suggestion():
    assert 'Did you mean "stock"?' in only_problem(STRICT=True, LOCKS=ENTRIES, LOCK_ORDER=[("stok", "order")]).hint


CONTRADICTIONS = {
    "two": [("order", "stock"), ("stock", "order")],
    "as a path": [("order", "stock"), ("stock/{pk}", "order/{order}")],
    "three": [("order", "stock"), ("stock", "till"), ("till", "order")],
}


@pytest.mark.parametrize("pairs", CONTRADICTIONS.values(), ids=CONTRADICTIONS)
def test_pairs_that_contradict_each_other_are_refused(pairs):
    problem = only_problem(LOCKS=ENTRIES, LOCK_ORDER=pairs)
    assert (problem.id, "contradicts itself" in problem.message) == ("E022", True)
