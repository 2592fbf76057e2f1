"""The help of `manage.py zklock`, and its completion in bash and zsh."""

from __future__ import annotations

import argparse
import re
import shlex
import subprocess

import pytest
from django.core.management.base import CommandParser

from django_zklock.management.commands.zklock import SUBCOMMANDS, Command
from django_zklock.management.exit_codes import ExitCode
from django_zklock.management.zklock.completion import SCRIPT


def parsers() -> dict[str, argparse.ArgumentParser]:
    """Return the parsers of the sub-commands."""
    parser = Command().create_parser("manage.py", "zklock")
    (action,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    return dict(action.choices)


@pytest.mark.parametrize("name", SUBCOMMANDS)
def test_each_help_has_the_exit_codes_and_two_examples(name: str) -> None:
    help_text = parsers()[name].format_help()
    assert help_text.count(f"\n  python manage.py zklock {name}") == 2
    assert "exit codes:\n  0 done; 1 refused" in help_text
    for code in ("2", "3", "4", "69", "75", "76", "126, 127"):
        assert re.search(rf"\b{code} \w", help_text)


def test_the_help_of_the_doctor_has_the_code_of_each_cause() -> None:
    """At three in the morning, nobody looks for them in the docs."""
    help_text = parsers()["doctor"].format_help()
    for code in range(ExitCode.DEADLOCK, ExitCode.FLAPPING + 1):
        assert re.search(rf"\b{code} [a-z]", help_text)
    assert "69 lost quorum" in help_text


@pytest.mark.parametrize("name", SUBCOMMANDS)
def test_each_example_can_be_parsed(name: str) -> None:
    parser = Command().create_parser("manage.py", "zklock")
    assert isinstance(parser, CommandParser)
    for example in SUBCOMMANDS[name][1]:
        options = parser.parse_args([name, *shlex.split(example.partition(">")[0])])
        assert options.subcommand == name


def words(text: str, start: str) -> list[str]:
    """Return the words that the script has for a sub-command, or for a choice."""
    (choices,) = re.findall(rf'^ +{re.escape(start)}\) choices="(.*?)" ;;$', text, flags=re.MULTILINE)
    return str(choices).split()


def test_the_completion_knows_all_that_the_parser_knows() -> None:
    """Sub-commands, options and choices. The sub-commands that name a lock complete keys, or their own choices."""
    script, known = SCRIPT.read_text(), parsers()
    assert words(script, '""') == list(SUBCOMMANDS) == list(known)
    choices = 0
    for name, parser in known.items():
        actions = [action for action in parser._actions if action.help != argparse.SUPPRESS]
        options = [text for action in actions for text in action.option_strings if text.startswith("--")]
        assert words(script, name) == options
        for action in actions:
            if action.choices:
                choices += 1
                option = action.option_strings[0] if action.option_strings else name
                assert words(script, f'"{name} {option}"') == list(action.choices)
        needs_key = any(action.dest in ("name", "key", "action") for action in actions)
        assert (f'"{name} {name}"' in script) is needs_key
    assert script.count('choices="') == 1 + len(known) + choices + 2  # one that declares it, and one for keys


@pytest.mark.parametrize(
    ("line", "completed"),
    [
        ("./manage.py zklock en", "end-hold"),
        ("python manage.py zklock en", "end-hold"),
        ("/srv/app/manage.py zklock list --so", "--sort"),
        ("./manage.py zklock list --state un", "unreadable"),
        ("./manage.py zklock hold k --re", "--reason --reply-timeout"),
        ("./manage.py zklock show k --re", "--reply-timeout"),
        ("python setup.py zklock en", ""),
        ("python -m pytest en", ""),
    ],
)
def test_bash_completes_a_line(line: str, completed: str) -> None:
    """Only that of a `manage.py`: other programs are not run."""
    program = 'source "$0"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _zklock; echo "${COMPREPLY[@]}"'
    done = subprocess.run(
        ["bash", "-euc", program, str(SCRIPT), *line.split()], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == (f"{completed}\n", "")
