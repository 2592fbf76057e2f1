"""The code in the how-to about stepping in runs."""

from __future__ import annotations

from pathlib import Path

from support.docs import assert_passes, written

TEST = """
import pytest
from breaking import free
from deploying import drained_deploy
from django_zklock import zk_lock
from django_zklock.exceptions import LockBusy, LockLost


def test_a_deploy_is_drained(zklock):
    said = []
    def deploy():
        with pytest.raises(LockBusy) as caught, zk_lock("reports/nightly", timeout=0):
            pass
        said.append(str(caught.value))
    drained_deploy(deploy)
    assert "is held by operator anna until 20" in said[0] and said[0].endswith("UTC: deploy 42.")
    with zk_lock("reports/nightly", timeout=0):
        pass


def test_a_lock_is_broken(zklock):
    with pytest.raises(LockLost, match="was lost: it was broken by anna: stuck since Monday"):
        with zk_lock("invoice/7") as hold:
            assert free("invoice/7", "stuck since Monday", "anna").holder.token == hold.token
            hold.wait_lost(2)
"""


def test_the_examples_of_stepping_in_run(tmp_path: Path) -> None:
    assert_passes(written("how-to/break-or-hold-a-lock.md", tmp_path), TEST, 2)
