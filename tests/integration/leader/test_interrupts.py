"""Exceptions that strike a leader from outside (Ctrl-C, time limits) leave no contender."""

from __future__ import annotations

import gc

import pytest
from support.strike import assert_none_listed, functions_of, strides, sweep
from support.zoo import Zoo

from django_zklock import Leader
from django_zklock.locks import election

pytestmark = [pytest.mark.zookeeper, pytest.mark.filterwarnings("ignore:.*was dropped:ResourceWarning")]


@strides
def test_an_exception_at_any_line_of_a_leader_leaves_nothing(zoo: Zoo, stride: int) -> None:
    made: dict[str, Leader] = {}

    def make(key: str) -> Leader:
        return made.setdefault(key, Leader(key))

    def check(key: str) -> None:
        gc.collect()
        zoo.assert_empty()
        assert_none_listed()
        assert made[key].run(lambda hold: hold.key) == key

    sweep(functions_of(election), lambda leader: leader.run(lambda hold: None), check, stride, make=make, least=20)
