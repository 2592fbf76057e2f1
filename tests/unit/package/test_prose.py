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
"""
THIRTY = "A sentence of thirty words has this word and " + "more " * 20 + "words."


def name_faults(code: str) -> list[str]:
    faults = PROSE["complaints_of_names"]("any.py", code, PROSE["replaced_words"](GLOSSARY))
    return [fault.partition(": ")[2] for fault in faults]


@pytest.mark.parametrize("turn", ["to be had", "let go of", "let\n    # go of", "anew", "whoever", "stands", "no more"])
def test_a_forbidden_turn_is_found_at_its_line(turn: str) -> None:
    (fault,) = COMPLAINTS("any.py", f"\n# It {turn}.\n")
    assert fault.startswith("any.py:2: ")


@pytest.mark.parametrize("text", ["`anew`", "beat stands by", "no more than two", "renewal", "the owner"])
def test_other_words_are_left_alone(text: str) -> None:
    assert COMPLAINTS("any.py", text) == []


def test_long_sentences_of_a_page_are_found() -> None:
    """Thirty words are the limit, and the mean of a page is limited, too."""
    page = "Yes. " * 9 + "It is. It may be.\n\n" * 5 + THIRTY
    assert COMPLAINTS("README.md", page) == []
    assert COMPLAINTS("README.md", page.replace("words.", "few\nwords.")) == ["README.md:11: a sentence of 31 words"]
    assert COMPLAINTS("docs/page.md", f"{THIRTY}\n\n" * 5) == ["docs/page.md:1: sentences of 30.0 words in the mean"]


@pytest.mark.parametrize("form", ["```\n{}\n```", "| {} |", "# {}", "<!-- {}\n -->", "[It is](http://{})", "[it]: {}"])
def test_code_tables_and_headings_have_no_sentences(form: str) -> None:
    long = "more " * 50
    assert COMPLAINTS("docs/page.md", f"It is.\n\n{form.format(long)}\n\nIt may be.\n") == []


def test_the_glossary_lists_the_words_that_it_replaces() -> None:
    replaced = PROSE["replaced_words"](GLOSSARY)
    assert replaced == {"take": "acquire", "let go": "acquire", "ttl": "lease", "expiry": "lease"}


@pytest.mark.parametrize(
    ("code", "fault"),
    [
        ("def take_over(): ...", "the glossary says acquire, not take"),
        ("class Taking: ...", "the glossary says acquire, not take"),
        ("x = lambda a_taken: a_taken", "the glossary says acquire, not take"),
        ("self._take = 1", "the glossary says acquire, not take"),
        ("for each in x: ...", "name what it is"),
        ("self.place = 1", "name what it is"),
        ("def test_who_waits(): ...", ""),
        ("def test_those_in_the_queue_wait(): ...", ""),
        (f"def test_{'a' * 80}(): ...", ""),
        *((f'def f():\n    """{text}"""', f"no sentence: {text}") for text in ("The same.", "Of a semaphore.")),
        ('x = 1\n"""Who holds it."""', "no sentence: Who holds it."),
    ],
)
def test_a_name_or_docstring_that_breaks_a_rule_is_found(code: str, fault: str) -> None:
    (complaint,) = name_faults(code)
    assert complaint.endswith(fault)


@pytest.mark.parametrize(
    "code",
    [
        *("mistake = 1", "def signed_token(): ...", "take()", "'take'", "lease = 1", "founded = 1"),
        "def test_a_killed_holder_takes_its_lock_with_it(): ...",
        'def f():\n    """By default, it waits."""',
        'def f():\n    """A reply is dropped."""',
    ],
)
def test_names_and_docstrings_that_break_no_rule_are_left_alone(code: str) -> None:
    assert name_faults(code) == []
