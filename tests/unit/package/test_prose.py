"""`scripts/prose.py`, which `make lint` runs, finds all that it forbids, and nothing else."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

PATH = Path(__file__).resolve().parents[3] / "scripts" / "prose.py"
PROSE: dict[str, Any] = runpy.run_path(str(PATH))
COMPLAINTS: Callable[[str, str], list[str]] = PROSE["complaints"]
GLOSSARY = """
* **acquire**: to get a lock. *Not:
  take, let go.*
* **lease**: a time. *Not: TTL, expiry.*
* **permit**: a right. *Not: lease, which is another word.*
* **marker**: a child. *Not: sign.*
"""


def name_faults(code: str) -> list[str]:
    faults = PROSE["complaints_of_names"]("any.py", code, PROSE["replaced_words"](GLOSSARY))
    return [fault.partition(": ")[2] for fault in faults]


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
    assert COMPLAINTS("any.py", page.replace("words.", "few words.")) == []


@pytest.mark.parametrize(
    "form", ["```\n{}\n```", "| {} |", "# {}", "<!-- {}\n -->", "[It is](http://{})", "* `{}` is."]
)
def test_code_tables_and_headings_have_no_sentences(form: str) -> None:
    long = "more " * 50
    assert COMPLAINTS("docs/page.md", f"It is.\n\n{form.format(long)}\n\nIt may be.\n") == []


def test_the_mean_of_a_page_is_limited() -> None:
    assert COMPLAINTS("docs/page.md", f"{FORTY}\n\n" * 5) == ["docs/page.md:1: sentences of 40.0 words in the mean"]


def test_the_glossary_lists_the_words_that_it_replaces() -> None:
    replaced = PROSE["replaced_words"](GLOSSARY)
    assert replaced == {"take": "acquire", "let go": "acquire", "ttl": "lease", "expiry": "lease", "sign": "marker"}


@pytest.mark.parametrize(
    "code", ["def take_over(): ...", "class Taking: ...", "x = lambda a_taken: a_taken", "self._take = 1"]
)
def test_a_replaced_word_is_found_in_every_name(code: str) -> None:
    (fault,) = name_faults(code)
    assert fault.endswith("the glossary says acquire, not take")


@pytest.mark.parametrize(
    "code", ["mistake = 1", "def signed_token(): ...", "take()", "'take'", "lease = 1", "founded = 1"]
)
def test_other_names_are_left_alone(code: str) -> None:
    assert name_faults(code) == []


@pytest.mark.parametrize("code", ["for each in x: ...", "def f(found): ...", "_one = 1", "self.place = 1"])
def test_the_name_of_a_value_says_what_it_is(code: str) -> None:
    (fault,) = name_faults(code)
    assert fault.endswith("name what it is")


def test_the_name_of_a_test_is_short_and_names_a_property() -> None:
    for name in ("test_who_waits", "test_those_in_the_queue_wait", "test_it_is_let_go_of", f"test_{'a' * 80}"):
        assert len(name_faults(f"def {name}(): ...")) == 1
    assert name_faults("def test_a_killed_holder_takes_its_lock_with_it(): ...") == []


@pytest.mark.parametrize(
    "text", ["The same.", "By the same clock.", "Of a semaphore.", "As it was before.", "Who holds it."]
)
def test_a_docstring_is_a_sentence(text: str) -> None:
    assert name_faults(f'def f():\n    """{text}"""') == [f"no sentence: {text}"]
    assert name_faults(f'x = 1\n"""{text}"""') == [f"no sentence: {text}"]


@pytest.mark.parametrize("text", ["By default, it waits.", "Return the same.", "A reply is dropped.", "Organize."])
def test_sentences_are_left_alone(text: str) -> None:
    assert name_faults(f'def f():\n    """{text}"""') == []
