"""What users install and what importing it costs."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import django_zklock

ROOT = Path(__file__).parents[2]


def python(code: str, *, cwd: Path = ROOT) -> str:
    done = subprocess.run([sys.executable, "-c", code], cwd=cwd, capture_output=True, text=True, check=False, env={})
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_import_costs_neither_kazoo_nor_settings() -> None:
    """A settings module, or a plugin that is loaded first of all, may import the package."""
    loaded = python("import sys, django_zklock; print([m for m in ('kazoo', 'django', 'celery') if m in sys.modules])")
    assert loaded == "[]"


def test_errors_and_signals_need_no_settings() -> None:
    """Code that only catches errors, or listens, can be imported before Django is set up."""
    modules = "django_zklock.exceptions, django_zklock.signals"
    assert python(f"import sys, {modules}; print('kazoo' in sys.modules)") == "False"


@pytest.mark.parametrize("more", ["", "django.core.management.call_command('check')"], ids=["setup", "check"])
def test_the_start_of_django_costs_no_kazoo(more: str) -> None:
    """With the app, its fences and the admin installed; locks import it when they are used."""
    apps = ["admin", "auth", "contenttypes", "messages", "sessions"]
    installed = [*(f"django.contrib.{app}" for app in apps), "django_zklock", "django_zklock.contrib.fences"]
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
{more}
print(*(name for name in ("kazoo", "django_zklock.locks.contender", "celery") if name in sys.modules))
""")
    assert started.splitlines()[-1:] in ([], ["System check identified no issues (4 silenced)."])


def test_public_names_show_before_they_are_loaded() -> None:
    """Completion in a shell knows the public names."""
    names = python("import django_zklock; print(*dir(django_zklock))").split()
    assert {"zk_locked", "zk_lock", "Lock", "Hold", "__version__"} <= set(names)


def test_unknown_name_is_an_attribute_error() -> None:
    """The lazy lookup behaves as a module does."""
    with pytest.raises(AttributeError, match="no attribute 'zk_lokced'"):
        _ = django_zklock.zk_lokced  # type: ignore[attr-defined]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_wheel_holds_the_package_and_its_types(tmp_path: Path) -> None:
    """What is built from the checkout is complete, typed, and free of tests."""
    source = tmp_path / "source"
    source.mkdir()
    for name in ("setup.cfg", "pyproject.toml", "LICENSE"):
        shutil.copy(ROOT / name, source)
    (source / "README.md").write_text((ROOT / "README.md").read_text() if (ROOT / "README.md").exists() else "")
    shutil.copytree(ROOT / "django_zklock", source / "django_zklock", ignore=shutil.ignore_patterns("__pycache__"))
    (source / "tests").mkdir()
    (source / "tests" / "__init__.py").touch()
    build = [sys.executable, "-m", "build", "--wheel", "--outdir", str(tmp_path), str(source)]
    done = subprocess.run(build, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr

    (wheel,) = tmp_path.glob("django_zklock-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        metadata = next(name for name in names if name.endswith(".dist-info/METADATA"))
        text = archive.read(metadata).decode()
    modules = {str(path.relative_to(source)) for path in (source / "django_zklock").rglob("*.py")}
    others = {
        str(path.relative_to(source))
        for kind in ("*.html", "*.css", "*.js", "*.po", "*.mo")
        for path in (source / "django_zklock").rglob(kind)
    }
    assert len(others) > 10
    assert modules | others | {"django_zklock/py.typed"} <= names
    assert not [name for name in names if name.startswith("tests")]
    assert f"Version: {django_zklock.__version__}\n" in text
    assert "Requires-Python: >=3.10\n" in text
    assert "BSD-3-Clause" in text
