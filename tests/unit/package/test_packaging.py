"""The distributions are complete, those of the clients, too; importing the package is cheap; errors have one root."""

from __future__ import annotations

import inspect
import json
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from configparser import ConfigParser
from pathlib import Path
from typing import NamedTuple

import pytest

import django_zklock
import django_zklock.contrib.leases.v1.lock_coordinator_pb2 as of_the_server
import zklock_client.v1.lock_coordinator_pb2 as of_the_client
from django_zklock import exceptions
from django_zklock.exceptions import ZkLockError

ROOT = Path(__file__).parents[3]


def python(code, *, cwd=ROOT):
    done = subprocess.run([sys.executable, "-c", code], cwd=cwd, capture_output=True, text=True, check=False, env={})
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


class Distributions(NamedTuple):
    wheel: set[str]
    metadata: str  # of the wheel
    sdist: set[str]


def built(project, folder):
    """Build the sdist, and the wheel from it; return the names in both."""
    command = [sys.executable, "-m", "build", "--outdir", str(folder), str(project)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as archive, tarfile.open(sdist) as tar:
        names = set(archive.namelist())
        (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        packed = {name.partition("/")[2] for name in tar.getnames()}
        return Distributions(names, archive.read(metadata).decode(), packed)


def test_the_package_can_be_imported_early():
    """By the settings or an early plugin: it costs neither kazoo nor Django. Its names show before they are loaded."""
    printed = python("""
import sys, django_zklock
print([name for name in ("kazoo", "django", "celery") if name in sys.modules], *dir(django_zklock))
import django_zklock.exceptions, django_zklock.signals
print("kazoo" in sys.modules)
from django_zklock import zk_lock, Lock, zk_locked
from django_zklock.inspection import look_at
print("encodings.idna" in sys.modules)
""")
    first, second, third = printed.splitlines()
    names = first.removeprefix("[] ").split()
    assert {*django_zklock.__all__, "__version__"} <= set(names)
    assert second == "False"
    assert third == "True", "a child that is forked in the first look-up of a host could never look up one"


def test_the_start_of_django_costs_no_kazoo():
    apps = ["admin", "auth", "contenttypes", "messages", "sessions"]
    installed = [*(f"django.contrib.{app}" for app in apps), "django_zklock"]
    installed += ["django_zklock.contrib.fences", "django_zklock.contrib.events"]
    started = python(f"""
import sys, types
import django, django.core.management
from django.conf import settings
urls = types.ModuleType("urls")
urls.urlpatterns = []
sys.modules["urls"] = urls
settings.configure(
    INSTALLED_APPS={installed}, ROOT_URLCONF="urls", ZKLOCK={{"URL": "zk://h"}},
    DATABASES={{"default": {{"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}}},
    SILENCED_SYSTEM_CHECKS=["admin.E403", "admin.E408", "admin.E409", "admin.E410"],
)
django.setup()
print([name for name in ("kazoo", "django_zklock.core.protocol.contender", "celery") if name in sys.modules])
django.core.management.call_command('check')
print([name for name in ("kazoo", "django_zklock.core.protocol.contender", "celery") if name in sys.modules])
""")
    assert started.splitlines() == ["[]", "System check identified no issues (4 silenced).", "[]"]


def test_the_start_of_django_with_the_admin_imports_little():
    apps = [f"django.contrib.{app}" for app in ("admin", "auth", "contenttypes", "messages", "sessions")]
    without, loaded = (
        python(f"""
import sys
import django
from django.conf import settings
settings.configure(INSTALLED_APPS={installed}, ZKLOCK={{"URL": "zk://h"}})
django.setup()
print(*sys.modules)
""").split()
        for installed in (apps, [*apps, "django_zklock"])
    )
    assert len(set(loaded) - set(without)) <= 30, sorted(set(loaded) - set(without))


def test_a_missing_name_is_an_error():
    with pytest.raises(AttributeError, match="no attribute 'zk_lokced'"):
        _ = django_zklock.zk_lokced


def test_the_readme_names_the_version_and_what_is_supported():
    readme = (ROOT / "README.md").read_text()
    classifiers = (ROOT / "setup.cfg").read_text()
    workflow = (ROOT / ".github/workflows/ci.yml").read_text()
    nightly = (ROOT / ".github/workflows/nightly.yml").read_text()
    assert f"**Version {django_zklock.__version__}**" in readme
    for name, classifier in {"Python": "Programming Language :: Python", "Django": "Framework :: Django"}.items():
        versions = re.findall(rf"^    {classifier} :: (\d+\.\d+)$", classifiers, re.MULTILINE)
        assert f"{name} {versions[0]} to {versions[-1]}" in readme.partition("## Compatibility")[2]
        assert f"badge/{name}-{versions[0]}_to_{versions[-1]}-" in readme
        assert json.dumps(versions) in workflow
    newest = re.findall(r"Python :: (3\.\d+)$", classifiers, re.MULTILINE)[-1]
    assert f"PYTHON: python{newest} " in nightly
    assert f"py{newest.replace('.', '')}-" in (ROOT / "tox.ini").read_text()
    assert f"to {newest}" in (ROOT / "docs/installation.md").read_text()


def test_every_file_of_the_package_is_in_the_wheel():
    setup = ConfigParser()
    setup.read(ROOT / "setup.cfg")
    package = ROOT / "django_zklock"
    patterns = setup["options.package_data"]["django_zklock"].split()
    data = {path for pattern in patterns for path in package.glob(pattern)}
    files = {path for path in package.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    modules = {path for path in files if path.suffix == ".py"}
    assert files - modules - data == set()
    assert [path for path in modules if not (path.parent / "__init__.py").exists()] == []


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A checkout with what the distributions are built from, and with tests, which would not run from there."""
    source = tmp_path_factory.mktemp("source")
    for name in ("setup.cfg", "pyproject.toml", "MANIFEST.in", "LICENSE", "README.md", "CHANGELOG.md", "SECURITY.md"):
        shutil.copy(ROOT / name, source)
    for name in ("django_zklock", "docs", "examples"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__", "_build"))
    (source / "tests").mkdir()
    for name in ("__init__.py", "test_docs.py"):
        (source / "tests" / name).touch()
    return source


@pytest.fixture(scope="module")
def distributions(source, tmp_path_factory):
    return built(source, tmp_path_factory.mktemp("built"))


def names_in(source, folder, *patterns):
    return {str(path.relative_to(source)) for pattern in patterns for path in (source / folder).rglob(pattern)}


@pytest.mark.chaos
@pytest.mark.timeout(300)
def test_the_distributions_hold_every_file_of_the_package(source, distributions):
    modules = names_in(source, "django_zklock", "*.py", "py.typed")
    others = names_in(source, "django_zklock", "*.html", "*.css", "*.js", "*.json", "*.po", "*.mo", "*.proto", "*.pyi")
    assert len(others) > 10
    assert modules | others <= distributions.wheel
    assert modules | others <= distributions.sdist


@pytest.mark.chaos
@pytest.mark.timeout(300)
def test_only_the_sdist_has_the_documentation_and_none_has_tests(source, distributions):
    wheel, _, sdist = distributions
    assert {"README.md", "CHANGELOG.md", "LICENSE", "SECURITY.md", "pyproject.toml", "setup.cfg"} <= sdist
    assert names_in(source, "docs", "*") | names_in(source, "examples", "*") <= sdist
    assert not [name for name in wheel if name.startswith(("docs", "examples"))]
    assert not [name for name in wheel | sdist if name.startswith("tests")]


@pytest.mark.chaos
@pytest.mark.timeout(300)
def test_the_wheel_says_what_it_is_and_needs(distributions):
    text = distributions.metadata
    assert f"Version: {django_zklock.__version__}\n" in text
    assert "Requires-Python: >=3.11\n" in text
    assert "License-Expression: BSD-3-Clause\n" in text
    assert re.findall(r"^Provides-Extra: (.*)$", text, re.MULTILINE) == ["celery", "gevent", "grpc", "metrics", "otel"]
    labels = re.findall(r"^Project-URL: (\w+),", text, re.MULTILINE)
    assert labels == ["Documentation", "Source", "Changelog", "Issues"]


@pytest.mark.chaos
@pytest.mark.timeout(300)
def test_the_python_distributions_of_the_client_are_complete(tmp_path):
    names, _, packed = built(PYTHON, tmp_path)
    assert "LICENSE" in packed
    source = PYTHON / "zklock_client"
    modules = {str(path.relative_to(PYTHON)) for path in source.rglob("*") if path.suffix in (".py", ".pyi")}
    assert {name for name in names if not name.startswith("zklock_client-")} == modules | {"zklock_client/py.typed"}


SERVER = ROOT / "django_zklock" / "contrib" / "leases" / "v1"
PYTHON, NODE = ROOT / "clients" / "python", ROOT / "clients" / "node"


def test_the_clients_have_the_protocol_of_the_coordinator():
    for name in ("lock_coordinator_pb2.py", "lock_coordinator_pb2.pyi"):
        assert (PYTHON / "zklock_client" / "v1" / name).read_bytes() == (SERVER / name).read_bytes()
    assert (NODE / "lock_coordinator.proto").read_bytes() == (SERVER / "lock_coordinator.proto").read_bytes()


def test_client_and_server_may_be_in_one_process():
    """Protobuf registers their messages once."""
    assert of_the_client.DESCRIPTOR is of_the_server.DESCRIPTOR


@pytest.mark.parametrize(
    ("file", "needs"), [(PYTHON / "pyproject.toml", '"protobuf>={}"'), (ROOT / "setup.cfg", "protobuf>={}\n")]
)
def test_client_and_server_need_the_protobuf_that_their_code_was_generated_for(file, needs):
    """Generated code refuses to be imported with an older protobuf."""
    generated = (SERVER / "lock_coordinator_pb2.py").read_text()
    (version,) = re.findall(r"^# Protobuf Python Version: (.+)$", generated, re.MULTILINE)
    assert needs.format(version) in file.read_text()


ERRORS = [
    value
    for value in vars(exceptions).values()
    if inspect.isclass(value) and value.__module__ == exceptions.__name__ and issubclass(value, BaseException)
]
IN_THE_TREE = [error for error in ERRORS if issubclass(error, ZkLockError)]


@pytest.mark.parametrize("error", IN_THE_TREE)
def test_an_error_says_what_happened_and_to_which_lock(error):
    raised, bare = error("gone", lock="inventory/1"), error()
    assert (str(raised), raised.lock) == ("gone", "inventory/1")
    assert (str(bare), bare.lock) == ((inspect.getdoc(error) or "").splitlines()[0], None)


def test_errors_have_one_root_and_one_base_of_all_that_were_not_acquired():
    """Every error has the one root, but for the interrupt, which no `except Exception` may swallow."""
    assert [error for error in ERRORS if not issubclass(error, ZkLockError)] == [exceptions.LockLostInterrupt]
    assert not issubclass(exceptions.LockLostInterrupt, Exception)
    assert issubclass(exceptions.LockBusy, exceptions.LockNotAcquired)
    assert issubclass(exceptions.LockTimeout, exceptions.LockNotAcquired)
    assert issubclass(exceptions.LockDeadlock, exceptions.LockNotAcquired)
