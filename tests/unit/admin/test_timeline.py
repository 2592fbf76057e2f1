"""The last grants of a lock as a picture."""

from __future__ import annotations

import pytest

from django_zklock.report.timeline import NARROWEST, Bar, picture


def edges(part: tuple[str, str, str]) -> tuple[str, float, float]:
    """Return what it is, and where it begins and ends, in percent of the width."""
    what, x, width = part
    return what, float(x.rstrip("%")), float(x.rstrip("%")) + float(width.rstrip("%"))


def test_a_bar_has_its_wait_and_then_its_hold_on_one_axis() -> None:
    """Now is at the right edge. A lost hold has its own colour, and a hold of a moment is seen, too."""
    now = Bar("now", began=50, granted=40)
    lost = Bar("lost", began=100, granted=80, ended=60, is_bad=True)
    short = Bar("short", began=90, granted=90, ended=89.999)
    shown = picture([Bar("waits", began=30), now, lost, short])
    assert shown
    parts = [[edges(part) for part in parts] for _text, _y, parts in shown.bars]
    assert [[what for what, _begin, _end in part] for part in parts] == [
        ["wait"],
        ["wait", "hold"],
        ["wait", "lost"],
        ["hold"],
    ]
    assert abs(parts[0][0][2] - 100) < 0.1
    assert abs(parts[1][1][2] - 100) < 0.1
    assert abs(parts[1][0][2] - parts[1][1][1]) < 0.1, "the hold begins where the wait ends"
    assert abs(parts[3][0][2] - parts[3][0][1] - NARROWEST) < 0.01
    assert 1 <= len(shown.ticks) <= 4


@pytest.mark.parametrize("span", [1.0, 7.0, 21.0, 65.0, 79.0, 500.0, 5000.0, 100_000.0, 500_000.0])
def test_marks_are_whole_and_leave_room_for_now(span: float) -> None:
    shown = picture([Bar("", began=span, granted=span)])
    assert shown
    assert shown.ticks
    assert all(5 < float(x.rstrip("%")) < 72 for x, _text in shown.ticks)


def test_a_few_old_grants_do_not_shrink_all_others() -> None:
    """They are left out of the picture, but not if they still last; bars are never outside of it."""
    recent = [Bar("", began=60.0 + number, granted=59.0 + number, ended=58.0 + number) for number in range(5)]
    shown = picture([*recent, Bar("", began=86_400, granted=86_400, ended=80_000), Bar("", 86_400, 86_400)])
    assert shown
    assert [text for _x, text in shown.ticks] == ["-20 s", "-40 s", "-1 min"]
    *_others, over, lasts = shown.bars
    assert not over[2]
    assert edges(lasts[2][0]) == ("hold", 0.0, 100.0)
    assert picture([]) is None
