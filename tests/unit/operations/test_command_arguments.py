"""The arguments of `manage.py zklock`, its tables, its help, and its completion in bash and zsh."""

from __future__ import annotations

import argparse
import io
import re
import shlex
import subprocess

import pytest
from django.core.management.base import CommandParser, OutputWrapper
from django.test import override_settings

from django_zklock.management import output
from django_zklock.management.arguments import add_name, key_of, seconds
from django_zklock.management.commands.zklock import SUBCOMMANDS, Command
from django_zklock.management.exit_codes import ExitCode
from django_zklock.management.zklock.completion import SCRIPT

LOCKS = {"URL": "zk://127.0.0.1:1/x", "LOCKS": {"inventory": {"path": "inventory/{sku}"}}}


@pytest.mark.parametrize(
    ("text", "span"), [("90", 90), ("1.5s", 1.5), ("250ms", 0.25), ("15m", 900), ("2h", 7200), ("1d", 86400), ("0", 0)]
)
def test_a_span_of_time_is_parsed(text: str, span: float) -> None:
    assert seconds(text) == span


@pytest.mark.parametrize("text", ["", "x", "-1", "nan", "inf", "1w", "1e400", "400d", "ms"])
def test_a_wrong_span_of_time_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        seconds(text)


def test_columns_are_as_wide_as_a_terminal_shows_them() -> None:
    out = io.StringIO()
    output.write_table(OutputWrapper(out), ("name", "n"), [("倉庫", "1"), ("e\u0301", "23")], numbers=("n",))
    assert out.getvalue() == "NAME   N\n倉庫   1\ne\u0301     23\n"


@pytest.mark.parametrize("width", [40, 60, 80, 100, 120])
@pytest.mark.parametrize("long", ["x" * 120, "倉庫" * 60, "e\u0301" * 90])
def test_a_table_fits_the_terminal(width: int, long: str) -> None:
    out, head = io.StringIO(), ("lock", "runs", "held", "token", "session")
    row = (f"a{long}z", "shop.charge", "4 min 3 s", "4294967318", "0x1")
    output.write_table(OutputWrapper(out), head, [row], width=width, cut=("lock", "runs"))
    titles, line = out.getvalue().splitlines()
    assert output._width(line) <= width
    assert titles.split() == ["LOCK", "RUNS", "HELD"]
    lock, *_, held = line.split("  ")
    assert (lock[0], lock.strip()[-1], held.strip()) == ("a", "z", "4 min 3 s")


def test_a_long_last_column_goes_on_below() -> None:
    out = io.StringIO()
    output.write_table(OutputWrapper(out), ("check", "finding"), [("rights", "word " * 40)], width=60)
    lines = out.getvalue().splitlines()[1:]
    assert " ".join(lines).split() == ["rights", *["word"] * 40]
    assert all(len(line) <= 60 for line in lines)
    assert all(line.startswith(" " * 8) for line in lines[1:])


@pytest.mark.parametrize(
    ("name", "fields", "key"),
    [
        ("orders/7", {}, "orders/7"),
        ("orders/a b", {}, "orders/a%20b"),
        ("orders/a%20b", {}, "orders/a%20b"),
        ("100% sure", {}, "100%25%20sure"),
        ("inventory", {"sku": "x/y"}, "inventory/x%2Fy"),
        ("orders/{pk}", {"pk": "7"}, "orders/7"),
        ("a/123456789%30", {}, "a/1234567890"),
        ("a/1234567890", {}, "a/1234567890"),
    ],
)
def test_a_name_or_a_key_names_a_lock(name: str, fields: dict[str, str], key: str) -> None:
    with override_settings(ZKLOCK=LOCKS):
        assert key_of(argparse.Namespace(name=name, fields=fields)) == key


def test_a_field_is_given_once(capsys: pytest.CaptureFixture[str]) -> None:
    """The last value would win, and lock another key than the reader of the command expects."""
    parser = argparse.ArgumentParser()
    add_name(parser)
    given = parser.parse_args(["{a}/{b}", "--field=a=1", "--field=b=2"]).fields
    assert given == {"a": "1", "b": "2"}
    assert parser.parse_args(["k"]).fields == {}
    with pytest.raises(SystemExit):
        parser.parse_args(["{a}", "--field=a=1", "--field=a=2"])
    assert "'a' is given twice" in capsys.readouterr().err


def parsers() -> dict[str, argparse.ArgumentParser]:
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
