"""The state file of a coordinator: what is refused, what the next process reads, and a disk that fails."""

import asyncio
import errno
import json
import math
import os
import shutil
import stat
from pathlib import Path

import pytest

from django_zklock.contrib.leases.state import ALLOCATED, HEADER, RECORD, StateFile
from django_zklock.core import clock
from django_zklock.core.zk.options import FormerSession, Secret

ROOT = "/zklock"
SESSION = FormerSession(id=-5, password=Secret("0a" * 16), timeout=20.0)


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


async def write(file, ends):
    """Write the session, and ends that are so many seconds away."""
    now = asyncio.get_running_loop().time()
    written = [file.set_end(token, now + seconds) for token, seconds in ends.items()]
    await file.set_session(SESSION)
    assert all(await asyncio.gather(*written))


def ends_of(file, former):
    ends = file.ends_after(former.name)
    assert ends is not None
    return ends


async def test_the_next_process_reads_the_session_and_the_ends(opened, path):
    file = opened.open(path)
    await write(file, {7: 30.0, 8: -1.0})
    ends_at = clock.now()
    again = opened.open(path)
    assert (again.former, again.key, opened.lines) == (SESSION, file.key, [])
    assert {token: round(end - ends_at) for token, end in ends_of(again, file).items()} == {7: 30, 8: -1}


async def test_a_lease_that_is_over_makes_room_for_another_one(opened, path):
    file = opened.open(path)
    await write(file, {7: 30.0, 8: 30.0})
    file.forget(7)
    file.forget(7)
    await write(file, {9: 30.0})
    assert ends_of(opened.open(path), file).keys() == {8, 9}


async def test_there_may_be_more_leases_than_were_allocated_for(opened, path, monkeypatch):
    monkeypatch.setattr("django_zklock.contrib.leases.state.ALLOCATED", HEADER)
    file = opened.open(path)
    await write(file, dict.fromkeys(range(1, 50), 30.0))
    assert len(ends_of(opened.open(path), file)) == 49


async def test_in_a_copy_the_ends_are_unknown(opened, path):
    """The process that has the file may have written other ends since, or uses another clock."""
    file = opened.open(path)
    await write(file, {7: 30.0})
    copy = path.with_name("copy")
    shutil.copy2(path, copy)
    again = opened.open(copy)
    assert again.former == SESSION
    assert again.ends_after(file.name) is None


@pytest.mark.parametrize("name", [b"", b"another"])
async def test_after_another_process_had_the_session_the_ends_are_unknown(opened, path, name):
    """It has told its clients other ends."""
    await write(opened.open(path), {7: 30.0})
    assert opened.open(path).ends_after(name) is None


async def test_after_a_restart_of_the_machine_the_ends_are_unknown(opened, path, tmp_path, monkeypatch):
    file = opened.open(path)
    await write(file, {7: 30.0})
    (tmp_path / "boot_id").write_text("another")
    monkeypatch.setattr("django_zklock.contrib.leases.state._BOOT_ID", tmp_path / "boot_id")
    assert opened.open(path).ends_after(file.name) is None


def _cut(path):
    os.truncate(path, 100)


def _fill(path):
    path.write_bytes(os.urandom(HEADER * 2))


def _change(**fields):
    def change(path):
        header = {**json.loads(path.read_bytes()[:HEADER]), **fields}
        with path.open("r+b") as file:
            file.write(json.dumps(header).encode().ljust(HEADER))

    return change


@pytest.mark.parametrize(
    ("harm", "problem"),
    [
        (_cut, "is damaged, or of another release"),
        (_fill, "is damaged, or of another release"),
        (_change(session="1"), "is damaged, or of another release"),
        (_change(password="0x"), "is damaged, or of another release"),
        (_change(password=None), "is damaged, or of another release"),
        (_change(timeout=math.inf), "is damaged, or of another release"),
        (_change(key=[]), "is damaged, or of another release"),
        (_change(name=1), "is damaged, or of another release"),
        (_change(root="/other"), f"is not of the ROOT {ROOT}"),
    ],
)
async def test_a_useless_file_is_reported_once(opened, path, harm, problem):
    await write(opened.open(path), {7: 30.0})
    opened.close()
    harm(path)
    file = opened.open(path)
    assert opened.lines == [f"{path} {problem}. Starting without leases."]
    assert file.former is None
    await write(file, {9: 30.0})
    assert opened.open(path).former == SESSION
    assert len(opened.lines) == 1


@pytest.mark.parametrize("length", [*range(0, 2 * RECORD + 3, 7), ALLOCATED - HEADER - 1])
async def test_in_a_file_that_is_cut_the_ends_are_unknown(opened, path, length):
    file = opened.open(path)
    await write(file, {7: 30.0, 8: 30.0})
    opened.close()
    os.truncate(path, HEADER + length)
    again = opened.open(path)
    assert (again.former, again.ends_after(file.name)) == (SESSION, None)


async def test_with_any_bit_flipped_the_ends_are_unknown(opened, path):
    file = opened.open(path)
    await write(file, {7: 30.0, 8: 30.0})
    opened.close()
    whole = path.read_bytes()
    for bit in range(8 * HEADER, 8 * (HEADER + 3 * RECORD)):
        data = bytearray(whole)
        data[bit // 8] ^= 1 << bit % 8
        path.write_bytes(data)
        assert opened.open(path).ends_after(file.name) is None, bit


async def test_damage_lasts_for_one_process(opened, path):
    await write(opened.open(path), {7: 30.0, 8: 30.0})
    opened.close()
    with path.open("r+b") as written:
        written.seek(HEADER + RECORD)
        written.write(b"?")
    file = opened.open(path)
    file.clear()
    await write(file, {9: 30.0})
    assert ends_of(opened.open(path), file).keys() == {9}


def test_a_new_file_is_for_this_user_only(opened, path):
    before = os.umask(0)
    try:
        opened.open(path)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


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


async def test_a_disk_that_fails_is_told_and_tried_again(opened, path, caplog, monkeypatch):
    def fail(*_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    file, until = opened.open(path), asyncio.get_running_loop().time() + 30
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", fail)
        assert [await file.set_end(7, until) for _ in range(2)] == [False, False]
    assert await file.set_end(7, until)
    assert [record.levelname for record in caplog.records] == ["ERROR", "ERROR"]
    assert str(path) in caplog.text


def test_a_full_disk_is_an_error_at_the_start(opened, path):
    """Later, it does no harm."""
    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full")
    import resource

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (HEADER, before[1]))
    try:
        with pytest.raises(OSError, match=r"No space left|too large"):
            opened.open(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


async def test_no_secret_is_shown(opened, path):
    file = opened.open(path)
    await write(file, {7: 30.0})
    again = opened.open(path)
    assert SESSION.password not in repr(again.former)
