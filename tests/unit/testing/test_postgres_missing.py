"""Without PostgreSQL the tests of the fences fail, and say what to install; none is skipped in silence."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import postgres


@pytest.fixture(autouse=True)
def nothing_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine without the server, and without apt."""
    monkeypatch.setattr(postgres, "PROGRAMS", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))


def test_a_machine_without_postgresql_is_told_what_to_install() -> None:
    """As the error of each test that asks for the server."""
    with pytest.raises(postgres.PostgresNotFound, match="apt-get install postgresql"), postgres.Postgres():
        pass


def test_where_nothing_can_be_installed_make_says_so() -> None:
    """Where apt is not available."""
    with pytest.raises(SystemExit, match="apt-get install postgresql"):
        postgres.ensure()


def test_the_newest_version_is_taken(tmp_path: Path) -> None:
    """By number: 9.6 is older than 15."""
    for version in ("9.6", "15", "13"):
        (tmp_path / version / "bin").mkdir(parents=True)
        (tmp_path / version / "bin" / "initdb").touch()
    assert postgres.find_programs() == tmp_path / "15" / "bin"
