"""The state file of a coordinator: what the next process reads, what is refused, and a disk that fails."""

import asyncio
import errno
import json
import math
import os
import shutil
import stat
from pathlib import Path

import pytest
from support.zoo import eventually

from django_zklock.contrib.leases.state import StateFile
from django_zklock.core.zk.options import FormerSession, Secret

ROOT = "/zklock"
SESSION = FormerSession(id=-5, password=Secret("0a" * 16), timeout=20.0)
OTHER_SESSION = FormerSession(id=6, password=Secret("0b" * 16), timeout=20.0)


class Opened:
    """State files as successive processes open them, and the lines that they say."""

    def __init__(self):
        self.lines = []
        self._files = []

    def open(self, path, root=ROOT):
        self.close()
        self._files.append(StateFile(path, root, self.lines.append))
        return self._files[-1]

    def close(self):
        for file in self._files:
            file.close()
        self._files.clear()


@pytest.fixture
def opened():
    opened = Opened()
    yield opened
    opened.close()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "state"


async def test_the_next_process_reads_the_session(opened, path):
    file = opened.open(path)
    await file.set_session(OTHER_SESSION)
    await file.set_session(SESSION)
    again = opened.open(path)
    assert (again.former, again.key, opened.lines) == (SESSION, file.key, [])
    assert again.name != file.name  # each process claims the session by a name of its own


async def test_a_session_that_goes_on_is_not_written_again(opened, path):
    await opened.open(path).set_session(SESSION)
    before = path.stat().st_ino
    await opened.open(path).set_session(SESSION)
    assert path.stat().st_ino == before


async def test_a_state_file_of_another_root_is_told_and_replaced(opened, path):
    await opened.open(path, root="/other").set_session(SESSION)
    file = opened.open(path)
    assert (file.former, opened.lines) == (None, [f"{path} is not of the ROOT {ROOT}. Starting without leases."])
    await file.set_session(SESSION)
    assert opened.open(path).former == SESSION


def test_an_empty_file_is_as_good_as_none(opened, path):
    path.touch(0o600)
    assert (opened.open(path).former, opened.lines) == (None, [])


def changed(**fields):
    return lambda data: json.dumps({**json.loads(data), **fields}).encode()


@pytest.mark.parametrize(
    "harm",
    [
        lambda data: data[:100],
        lambda data: data * 100,
        lambda data: b"SQLite format 3\0",
        lambda data: b"\0" * 4096,
        lambda data: b"{}",
        changed(session="1"),
        changed(password="0x"),
        changed(password=None),
        changed(timeout=math.inf),
        changed(key=[]),
    ],
)
async def test_a_file_that_is_no_state_file_is_refused_and_left_alone(opened, path, harm):
    await opened.open(path).set_session(SESSION)
    opened.close()
    path.write_bytes(harm(path.read_bytes()))
    before = path.read_bytes()
    with pytest.raises(OSError, match=f"{path} is no state file of a coordinator"):
        opened.open(path)
    assert path.read_bytes() == before
    path.unlink()
    assert opened.open(path).former is None  # the refusal has kept no lock


async def test_a_new_file_is_for_this_user_only(opened, path):
    before = os.umask(0)
    try:
        await opened.open(path).set_session(SESSION)
    finally:
        os.umask(before)
    assert {stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()} == {0o600}


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o610])
def test_a_file_that_others_can_use_is_refused(opened, path, mode):
    path.touch()
    path.chmod(mode)
    with pytest.raises(OSError, match=f"chmod 600 {path}"):
        opened.open(path)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_the_file_of_another_user_is_refused(opened, path):
    path.touch(0o600)
    os.chown(path, 1, 1)
    with pytest.raises(OSError, match="chown 0"):
        opened.open(path)


def test_a_path_of_another_kind_is_refused(opened, path):
    os.mkfifo(path, 0o600)
    with pytest.raises(OSError, match="is no regular file"):
        opened.open(path)
    with pytest.raises(OSError, match="Is a directory"):
        opened.open(path.parent)
    with pytest.raises(OSError, match="No such file"):
        opened.open(path.parent / "none" / "state")


async def test_a_disk_that_fails_is_told_and_leaves_the_file_as_it_was(opened, path, caplog, monkeypatch):
    def fail(_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    file = opened.open(path)
    await file.set_session(SESSION)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        await file.set_session(OTHER_SESSION)
    assert [(record.levelname, str(path) in record.getMessage()) for record in caplog.records] == [("ERROR", True)]
    assert sorted(entry.name for entry in path.parent.iterdir()) == ["state"]
    assert opened.open(path).former == SESSION


@pytest.fixture
def looks(monkeypatch):
    """Make it look at its file all the time."""
    monkeypatch.setattr("django_zklock.contrib.leases.state.LOOK_EVERY", 0.01)


def moved_away(path):
    path.rename(path.with_name("moved"))


def replaced_by_a_copy(path):
    shutil.copy(path, path.with_name("copy"))
    path.with_name("copy").replace(path)


def truncated(path):
    path.write_bytes(b"")


def folder_moved_away(path):
    path.parent.rename(path.parent.with_name("moved"))
    path.parent.mkdir()


@pytest.mark.parametrize("harm", [Path.unlink, moved_away, replaced_by_a_copy, truncated, folder_moved_away])
async def test_a_file_that_is_moved_or_deleted_is_written_again(opened, path, looks, harm):
    file = opened.open(path)
    await file.set_session(SESSION)
    before, data = path.stat().st_ino, path.read_bytes()
    harm(path)
    await asyncio.to_thread(eventually, lambda: path.exists() and path.read_bytes() == data)
    await asyncio.to_thread(eventually, lambda: path.stat().st_ino != before)
    await file.set_session(OTHER_SESSION)
    assert opened.open(path).former == OTHER_SESSION


def written_over(path):
    path.write_bytes(b"SQLite format 3\0")


def replaced(path):
    path.with_name("new").write_bytes(b"{}")
    path.with_name("new").replace(path)


@pytest.mark.parametrize("harm", [written_over, replaced])
async def test_a_file_that_another_program_writes_meanwhile_is_told_and_left_alone(opened, path, looks, caplog, harm):
    file = opened.open(path)
    await file.set_session(SESSION)
    harm(path)
    before = path.read_bytes()
    await asyncio.to_thread(eventually, lambda: "another program has written it" in caplog.text)
    await file.set_session(OTHER_SESSION)
    assert path.read_bytes() == before
    assert caplog.text.count("another program has written it") == 1


def moved(path):
    return path.rename(path.with_name("moved"))


async def test_no_secret_is_shown(opened, path):
    await opened.open(path).set_session(SESSION)
    assert SESSION.password not in repr(opened.open(path).former)
