"""`scripts/prose.py`, which `make lint` runs: it finds what it forbids, and nothing else."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path

import pytest

PATH = Path(__file__).resolve().parents[3] / "scripts" / "prose.py"
COMPLAINTS: Callable[[str, str], list[str]] = runpy.run_path(str(PATH))["complaints"]
FORTY = "A sentence of forty words has this word and " + "more " * 30 + "words."


@pytest.mark.parametrize("turn", ["to be had", "let go of", "anew", "whoever", "stands", "no more"])
def test_a_forbidden_turn_is_found_at_its_line(turn: str) -> None:
    assert [line.partition(": ")[0] for line in COMPLAINTS("any.py", f"\n# It {turn}.\n")] == ["any.py:2"]


def test_a_turn_is_found_across_the_lines_of_a_comment() -> None:
    assert len(COMPLAINTS("any.py", "# They let\n    # go of it.\n")) == 1


@pytest.mark.parametrize("text", ["`anew`", "beat stands by", "no more than two", "renewal", "the owner"])
def test_other_words_are_left_alone(text: str) -> None:
    assert COMPLAINTS("any.py", text) == []


def test_a_sentence_of_forty_words_is_the_longest() -> None:
    page = "Yes. " * 9 + "It is. It may be.\n\n" * 5 + FORTY
    assert COMPLAINTS("README.md", page) == []
    assert COMPLAINTS("README.md", page.replace("words.", "few\nwords.")) == ["README.md:11: a sentence of 41 words"]
    assert COMPLAINTS("SECURITY.md", page.replace("words.", "few words.")) == []


@pytest.mark.parametrize(
    "form", ["```\n{}\n```", "| {} |", "# {}", "<!-- {}\n -->", "[It is](http://{})", "* `{}` is."]
)
def test_what_is_no_prose_has_no_sentences(form: str) -> None:
    long = "more " * 50
    assert COMPLAINTS("docs/page.md", f"It is.\n\n{form.format(long)}\n\nIt may be.\n") == []


def test_the_mean_of_a_page_is_limited() -> None:
    assert COMPLAINTS("docs/page.md", FORTY) == ["docs/page.md:1: sentences of 40.0 words in the mean"]
